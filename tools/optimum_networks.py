"""Small networks with random weights, of the architectures that Optimum exports for ONNX. `exporters.py optimum` exports them."""

import transformers as hf

TEXT = "feature-extraction"
DECODER = "text-generation-with-past"
TRANSLATOR = "text2text-generation-with-past"
SPEECH = "automatic-speech-recognition"


def sized(config, **further):
    """A configuration of two small layers."""
    sizes = dict(tower(), vocab_size=120, max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2)
    return config(**{**sizes, **further})


def translating(config, **further):
    """The same of an encoder and a decoder."""
    parts = {f"{part}_{name}": value for part in ("encoder", "decoder")
             for name, value in dict(layers=2, attention_heads=4, ffn_dim=64).items()}  # fmt: skip
    sizes = dict(parts, vocab_size=120, d_model=32, max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2,
                 decoder_start_token_id=2, forced_eos_token_id=2)  # fmt: skip
    return config(**{**sizes, **further})


def detecting(config, **further):
    """The same of one layer each, for images."""
    parts = {f"{part}_{name}": value for part in ("encoder", "decoder") for name, value in dict(attention_heads=4, ffn_dim=32).items()}
    return config(**{**parts, "d_model": 32, "decoder_layers": 1, **further})


def tower(**further):
    return dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, **further)


def pictures(**further):
    """The same for images of 4 x 4 patches."""
    return tower(image_size=32, patch_size=8, **further)


def texts(**further):
    return tower(vocab_size=120, **further)


def speech(config):
    return sized(config, conv_dim=(16,) * 3, conv_stride=(5, 2, 2), conv_kernel=(10, 3, 3), num_feat_extract_layers=3,
                 num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=4)  # fmt: skip


def by_name(config, **further):
    """The same of a configuration that calls its sizes as GPT-2's does."""
    return config(vocab_size=120, n_embd=32, n_layer=2, n_head=4, n_positions=64, **further)


def networks():
    """Name, module, and the task that it is exported for."""
    yield "gpt2", hf.GPT2LMHeadModel(by_name(hf.GPT2Config, bos_token_id=1, eos_token_id=2)), DECODER
    yield "llama", hf.LlamaForCausalLM(sized(hf.LlamaConfig, num_key_value_heads=2)), DECODER
    yield "mistral", hf.MistralForCausalLM(sized(hf.MistralConfig, num_key_value_heads=2, sliding_window=16)), DECODER
    yield "qwen2", hf.Qwen2ForCausalLM(sized(hf.Qwen2Config, num_key_value_heads=2)), DECODER
    yield "qwen3", hf.Qwen3ForCausalLM(sized(hf.Qwen3Config, num_key_value_heads=2, head_dim=8)), DECODER
    yield "phi", hf.PhiForCausalLM(sized(hf.PhiConfig)), DECODER
    yield "phi3", hf.Phi3ForCausalLM(sized(hf.Phi3Config, num_key_value_heads=2)), DECODER
    yield "gemma", hf.GemmaForCausalLM(sized(hf.GemmaConfig, num_key_value_heads=2, head_dim=8)), DECODER
    yield "gemma3", hf.Gemma3ForCausalLM(sized(hf.Gemma3TextConfig, num_key_value_heads=2, head_dim=8, sliding_window=8)), DECODER
    yield "opt", hf.OPTForCausalLM(
        hf.OPTConfig(
            vocab_size=120,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            ffn_dim=64,
            max_position_embeddings=64,
            word_embed_proj_dim=32,
            pad_token_id=0,
        )
    ), DECODER
    yield "bloom", hf.BloomForCausalLM(hf.BloomConfig(vocab_size=120, hidden_size=32, n_layer=2, n_head=4)), DECODER
    yield "gpt_neo", hf.GPTNeoForCausalLM(
        hf.GPTNeoConfig(
            vocab_size=120,
            hidden_size=32,
            num_layers=2,
            num_heads=4,
            attention_types=[[["global", "local"], 1]],
            max_position_embeddings=64,
            window_size=8,
        )
    ), DECODER
    yield "gpt_neox", hf.GPTNeoXForCausalLM(sized(hf.GPTNeoXConfig)), DECODER
    yield "gptj", hf.GPTJForCausalLM(by_name(hf.GPTJConfig, rotary_dim=4)), DECODER
    yield "codegen", hf.CodeGenForCausalLM(by_name(hf.CodeGenConfig, rotary_dim=4, n_ctx=64)), DECODER
    yield "falcon", hf.FalconForCausalLM(
        hf.FalconConfig(vocab_size=120, hidden_size=32, num_hidden_layers=2, num_attention_heads=4)
    ), DECODER
    yield "mpt", hf.MptForCausalLM(hf.MptConfig(vocab_size=120, d_model=32, n_layers=2, n_heads=4, max_seq_len=64)), DECODER
    yield "olmo", hf.OlmoForCausalLM(sized(hf.OlmoConfig)), DECODER
    yield "granite", hf.GraniteForCausalLM(sized(hf.GraniteConfig, num_key_value_heads=2)), DECODER
    yield "t5", hf.T5ForConditionalGeneration(
        hf.T5Config(vocab_size=120, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, decoder_start_token_id=0)
    ), TRANSLATOR
    yield "longt5", hf.LongT5ForConditionalGeneration(
        hf.LongT5Config(vocab_size=120, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, local_radius=4, decoder_start_token_id=0)
    ), TRANSLATOR
    yield "bart", hf.BartForConditionalGeneration(translating(hf.BartConfig)), TRANSLATOR
    yield "marian", hf.MarianMTModel(translating(hf.MarianConfig)), TRANSLATOR
    yield "pegasus", hf.PegasusForConditionalGeneration(translating(hf.PegasusConfig)), TRANSLATOR
    yield "m2m_100", hf.M2M100ForConditionalGeneration(translating(hf.M2M100Config)), TRANSLATOR
    yield "blenderbot", hf.BlenderbotForConditionalGeneration(translating(hf.BlenderbotConfig)), TRANSLATOR
    yield "whisper", hf.WhisperForConditionalGeneration(
        translating(hf.WhisperConfig, max_source_positions=1500, max_target_positions=32, num_mel_bins=8)
    ), "automatic-speech-recognition-with-past"
    yield "speech_to_text", hf.Speech2TextForConditionalGeneration(
        translating(hf.Speech2TextConfig, max_source_positions=64, max_target_positions=32, input_feat_per_channel=8, conv_channels=16)
    ), "automatic-speech-recognition-with-past"
    yield "wav2vec2", hf.Wav2Vec2ForCTC(speech(hf.Wav2Vec2Config)), SPEECH
    yield "hubert", hf.HubertForCTC(speech(hf.HubertConfig)), SPEECH
    yield "distilbert", hf.DistilBertForSequenceClassification(
        hf.DistilBertConfig(vocab_size=120, dim=32, n_layers=2, n_heads=4, hidden_dim=64, max_position_embeddings=64)
    ), "text-classification"
    yield "roberta", hf.RobertaForTokenClassification(sized(hf.RobertaConfig)), "token-classification"
    yield "deberta", hf.DebertaForQuestionAnswering(
        sized(hf.DebertaConfig, relative_attention=True, pos_att_type=["c2p", "p2c"])
    ), "question-answering"
    yield "deberta_v2", hf.DebertaV2ForSequenceClassification(
        sized(
            hf.DebertaV2Config,
            relative_attention=True,
            pos_att_type=["c2p", "p2c"],
            position_buckets=8,
            norm_rel_ebd="layer_norm",
            share_att_key=True,
        )
    ), "text-classification"
    yield "mpnet", hf.MPNetForMaskedLM(sized(hf.MPNetConfig)), "fill-mask"
    yield "electra", hf.ElectraForSequenceClassification(sized(hf.ElectraConfig, embedding_size=32)), "text-classification"
    yield "albert", hf.AlbertForMaskedLM(sized(hf.AlbertConfig, embedding_size=16)), "fill-mask"
    yield "xlm_roberta", hf.XLMRobertaModel(sized(hf.XLMRobertaConfig)), TEXT
    yield "modernbert", hf.ModernBertForMaskedLM(sized(hf.ModernBertConfig, local_attention=8, cls_token_id=1, sep_token_id=2)), "fill-mask"
    yield "layoutlm", hf.LayoutLMForTokenClassification(sized(hf.LayoutLMConfig)), "token-classification"
    yield "clip", hf.CLIPModel(
        hf.CLIPConfig(text_config=texts(max_position_embeddings=32, eos_token_id=2), vision_config=pictures(), projection_dim=16)
    ), "zero-shot-image-classification"
    yield "siglip", hf.SiglipModel(
        hf.SiglipConfig(text_config=texts(max_position_embeddings=32), vision_config=pictures())
    ), "zero-shot-image-classification"
    yield "vit", hf.ViTForImageClassification(hf.ViTConfig(**pictures())), "image-classification"
    yield "swin", hf.SwinForImageClassification(
        hf.SwinConfig(image_size=32, patch_size=2, embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4)
    ), "image-classification"
    yield "swinv2", hf.Swinv2ForImageClassification(
        hf.Swinv2Config(image_size=32, patch_size=2, embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4)
    ), "image-classification"
    yield "convnext", hf.ConvNextForImageClassification(
        hf.ConvNextConfig(image_size=32, hidden_sizes=[16, 32], depths=[1, 2], num_stages=2)
    ), "image-classification"
    yield "segformer", hf.SegformerForSemanticSegmentation(
        hf.SegformerConfig(
            num_encoder_blocks=2,
            depths=[1, 1],
            sr_ratios=[2, 1],
            hidden_sizes=[16, 32],
            patch_sizes=[7, 3],
            strides=[4, 2],
            num_attention_heads=[1, 2],
            mlp_ratios=[2, 2],
            decoder_hidden_size=32,
        )
    ), "semantic-segmentation"
    yield "detr", hf.DetrForObjectDetection(
        detecting(
            hf.DetrConfig,
            use_timm_backbone=False,
            use_pretrained_backbone=False,
            backbone_config=hf.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16, 16, 32], depths=[1, 1, 1, 1], out_features=["stage4"]),
            backbone=None,
            num_queries=5,
            encoder_layers=1,
        )
    ), "object-detection"
    yield "yolos", hf.YolosForObjectDetection(
        hf.YolosConfig(**tower(), image_size=[32, 48], patch_size=8, num_detection_tokens=5)
    ), "object-detection"
    yield "rt_detr", hf.RTDetrForObjectDetection(
        detecting(
            hf.RTDetrConfig,
            encoder_hidden_dim=32,
            num_queries=10,
            encoder_in_channels=[16, 24, 32],
            decoder_in_channels=[32, 32, 32],
            backbone_config=hf.RTDetrResNetConfig(
                embedding_size=8,
                hidden_sizes=[8, 16, 24, 32],
                depths=[1, 1, 1, 1],
                layer_type="basic",
                out_features=["stage2", "stage3", "stage4"],
            ),
        )
    ), "object-detection"
    yield "dpt", hf.DPTForDepthEstimation(
        hf.DPTConfig(
            hidden_size=32,
            num_hidden_layers=4,
            num_attention_heads=4,
            intermediate_size=64,
            image_size=32,
            patch_size=8,
            backbone_out_indices=[0, 1, 2, 3],
            neck_hidden_sizes=[8, 8, 16, 16],
            fusion_hidden_size=16,
            readout_type="project",
        )
    ), "depth-estimation"
    yield "mobilevit", hf.MobileViTForImageClassification(
        hf.MobileViTConfig(image_size=64, hidden_sizes=[16, 24, 32], neck_hidden_sizes=[8, 8, 16, 24, 24, 32, 64], num_attention_heads=2)
    ), "image-classification"
    yield "owlvit", hf.OwlViTForObjectDetection(
        hf.OwlViTConfig(text_config=texts(max_position_embeddings=16), vision_config=pictures(), projection_dim=32)
    ), "zero-shot-object-detection"
    yield "trocr", hf.VisionEncoderDecoderModel(
        encoder=hf.ViTModel(hf.ViTConfig(**pictures())),
        decoder=hf.TrOCRForCausalLM(translating(hf.TrOCRConfig, cross_attention_hidden_size=32)),
    ), "image-to-text-with-past"
    yield "vits", hf.VitsModel(
        hf.VitsConfig(
            vocab_size=40,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            ffn_dim=64,
            flow_size=32,
            spectrogram_bins=33,
            upsample_initial_channel=32,
            upsample_rates=[4, 4],
            upsample_kernel_sizes=[8, 8],
            resblock_kernel_sizes=[3],
            resblock_dilation_sizes=[[1, 3, 5]],
            prior_encoder_num_flows=2,
            prior_encoder_num_wavenet_layers=2,
            depth_separable_num_layers=2,
            duration_predictor_num_flows=2,
        )
    ), "text-to-audio"
    yield "audio_spectrogram_transformer", hf.ASTForAudioClassification(
        hf.ASTConfig(**tower(), max_length=48, num_mel_bins=32)
    ), "audio-classification"
