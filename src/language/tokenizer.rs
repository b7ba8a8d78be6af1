//! `tokenizer.json` of the `tokenizers` library: words between blanks, looked up in the vocabulary.

use serde_json::{Map, Value, json};

use super::Language;
use super::vocabulary::UNKNOWN;

/// The file's text. It reads what [`Language::spell`] writes, and gives the same ids.
pub fn tokenizer_json(language: &Language) -> String {
    format!("{:#}\n", tokenizer(language.vocabulary()))
}

fn tokenizer(words: &[String]) -> Value {
    let vocabulary: Map<String, Value> = words.iter().enumerate().map(|(id, word)| (word.clone(), json!(id))).collect();
    json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": [],
        "normalizer": null,
        "pre_tokenizer": { "type": "WhitespaceSplit" },
        "post_processor": null,
        "decoder": null,
        "model": { "type": "WordLevel", "vocab": vocabulary, "unk_token": UNKNOWN },
    })
}

/// The words of a file that [`tokenizer_json`] wrote, of this language or an older one, by id.
///
/// # Errors
/// In words, for any other text.
pub fn tokenizer_words(text: &str) -> Result<Vec<String>, String> {
    let file: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let named = file.pointer("/model/vocab").and_then(Value::as_object).ok_or("it has no vocabulary")?;
    let mut words = vec![None; named.len()];
    for (word, id) in named {
        let place = id.as_u64().and_then(|id| words.get_mut(usize::try_from(id).ok()?));
        *place.ok_or_else(|| format!("`{word}` has id {id}, of {} words", named.len()))? = Some(word.clone());
    }
    let words: Option<Vec<String>> = words.into_iter().collect();
    let words = words.ok_or("two words have the same id")?;
    match file == tokenizer(&words) {
        true => Ok(words),
        false => Err("it does not split text into words between blanks, and look them up".into()),
    }
}
