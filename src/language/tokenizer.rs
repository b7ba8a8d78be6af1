//! `tokenizer.json` of the `tokenizers` library: words between blanks, looked up in the vocabulary.

use serde_json::{Map, Value, json};

use super::Language;
use super::vocabulary::UNKNOWN;

/// The file's text. It reads what [`Language::spell`] writes, and gives the same ids.
pub fn tokenizer_json(language: &Language) -> String {
    let vocabulary: Map<String, Value> =
        language.vocabulary().iter().enumerate().map(|(id, spelling)| (spelling.clone(), json!(id))).collect();
    let file = json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": [],
        "normalizer": null,
        "pre_tokenizer": { "type": "WhitespaceSplit" },
        "post_processor": null,
        "decoder": null,
        "model": { "type": "WordLevel", "vocab": vocabulary, "unk_token": UNKNOWN },
    });
    format!("{file:#}\n")
}
