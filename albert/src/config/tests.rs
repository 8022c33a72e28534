use super::*;

/// A small model: its pieces; sizes of embedding, hidden and intermediate vectors; layers and heads; positions.
pub(crate) fn small(
    vocab_size: usize,
    [embedding_size, hidden_size, intermediate_size]: [usize; 3],
    [num_hidden_layers, num_attention_heads]: [usize; 2],
    max_position_embeddings: usize,
) -> AlbertConfig {
    AlbertConfig {
        vocab_size,
        embedding_size,
        hidden_size,
        intermediate_size,
        num_hidden_layers,
        num_attention_heads,
        max_position_embeddings,
        ..AlbertConfig::preset("tiny").unwrap()
    }
}

const HF_BASE_V2: &str = r#"{
  "architectures": ["AlbertForMaskedLM"], "attention_probs_dropout_prob": 0, "bos_token_id": 2,
  "classifier_dropout_prob": 0.1, "down_scale_factor": 1, "embedding_size": 128, "eos_token_id": 3, "gap_size": 0,
  "hidden_act": "gelu_new", "hidden_dropout_prob": 0, "hidden_size": 768, "initializer_range": 0.02,
  "inner_group_num": 1, "intermediate_size": 3072, "layer_norm_eps": 1e-12, "max_position_embeddings": 512,
  "model_type": "albert", "net_structure_type": 0, "num_attention_heads": 12, "num_hidden_groups": 1,
  "num_hidden_layers": 12, "num_memory_blocks": 0, "pad_token_id": 0, "type_vocab_size": 2, "vocab_size": 30000
}"#;

fn with(text: &str, from: &str, to: &str) -> String {
    assert!(text.contains(from), "the case does not hold {from}");
    text.replace(from, to)
}

#[test]
fn reads_a_released_config_and_lists_what_means_nothing() {
    let reading = AlbertConfig::from_hf_json(HF_BASE_V2).unwrap();
    let base = AlbertConfig { embedding_map: EmbeddingMap::Always, ..AlbertConfig::preset("base-v2").unwrap() };
    assert_eq!(reading.config, base);
    assert_eq!(reading.ignored, ["down_scale_factor", "gap_size", "net_structure_type", "num_memory_blocks"]);
    assert_eq!(reading.notes, Vec::<String>::new());
}

#[test]
fn gelu_means_erf_in_hugging_face_files_and_tanh_in_googles() {
    let text = with(HF_BASE_V2, "gelu_new", "gelu");
    let hf = AlbertConfig::from_hf_json(&text).unwrap();
    assert_eq!(hf.config.hidden_act, Activation::GeluErf);
    assert!(hf.notes[0].contains("tanh form"), "{:?}", hf.notes);
    assert_eq!(AlbertConfig::from_google_json(&text).unwrap().config.hidden_act, Activation::GeluTanh);
    let relu = with(HF_BASE_V2, "gelu_new", "relu");
    assert_eq!(AlbertConfig::from_google_json(&relu).unwrap().config.hidden_act, Activation::Relu);
}

#[test]
fn the_map_exists_always_in_hugging_face_files_and_only_if_needed_in_googles() {
    let square = with(HF_BASE_V2, "\"embedding_size\": 128", "\"embedding_size\": 768");
    assert!(AlbertConfig::from_hf_json(&square).unwrap().config.has_embedding_map());
    assert!(!AlbertConfig::from_google_json(&square).unwrap().config.has_embedding_map());
    assert!(AlbertConfig::from_google_json(HF_BASE_V2).unwrap().config.has_embedding_map());
}

#[test]
fn every_preset_survives_json_and_toml_unchanged() {
    for (name, _) in PRESETS {
        for sharing in [Sharing::All, Sharing::Attention, Sharing::Ffn, Sharing::None, Sharing::Groups(2)] {
            let config = AlbertConfig { sharing, ..AlbertConfig::preset(name).unwrap() };
            config.validate().unwrap();
            let json = AlbertConfig::from_hf_json(&config.to_hf_json("AlbertForPreTraining")).unwrap();
            assert_eq!(json.config, config, "{name} {sharing} through JSON");
            assert_eq!(json.ignored, Vec::<String>::new(), "{name} {sharing}");
            let toml = toml::to_string(&config).unwrap();
            assert_eq!(toml::from_str::<AlbertConfig>(&toml).unwrap(), config, "{name} {sharing} through TOML");
        }
    }
    assert_eq!(AlbertConfig::preset("albert/albert-xxlarge-v1").unwrap().hidden_size, 4096);
}

#[test]
fn layers_find_their_weights() {
    let config =
        |sharing, layers| AlbertConfig { num_hidden_layers: layers, sharing, ..AlbertConfig::preset("tiny").unwrap() };
    let groups = |sharing, layers| {
        let blocks = config(sharing, layers).blocks();
        blocks.iter().map(|b| (b.attention.group, b.ffn.group)).collect::<Vec<_>>()
    };
    assert_eq!(groups(Sharing::All, 3), [(0, 0); 3]);
    assert_eq!(groups(Sharing::None, 3), [(0, 0), (1, 1), (2, 2)]);
    assert_eq!(groups(Sharing::Attention, 3), [(0, 0), (0, 1), (0, 2)]);
    assert_eq!(groups(Sharing::Ffn, 3), [(0, 0), (1, 0), (2, 0)]);
    assert_eq!(groups(Sharing::Groups(2), 5), [(0, 0), (0, 0), (0, 0), (1, 1), (1, 1)]);
    // In floating point 1/49·49 is below 1, which would put layer 1 of 49 into group 0.
    for layer in 0..49 {
        assert_eq!(groups(Sharing::Groups(49), 49)[layer], (layer, layer));
    }
    let inner = AlbertConfig { inner_group_num: 2, ..config(Sharing::Groups(2), 4) };
    let order: Vec<_> = inner.blocks().iter().map(|b| (b.layer, b.attention.group, b.ffn.inner)).collect();
    assert_eq!(order, [(0, 0, 0), (0, 0, 1), (1, 0, 0), (1, 0, 1), (2, 1, 0), (2, 1, 1), (3, 1, 0), (3, 1, 1)]);
    assert_eq!(inner.attention_sets().len(), 4);
}

#[test]
fn says_in_one_sentence_what_is_impossible() {
    type Change = fn(&mut AlbertConfig);
    let cases: &[(Change, &str)] = &[
        (|c| c.hidden_size = 0, "`hidden_size` is 0, expected a number from 1"),
        (|c| c.num_attention_heads = 5, "`hidden_size` 256 is not a multiple of `num_attention_heads` 5"),
        (|c| c.vocab_size = usize::MAX, "`vocab_size` is"),
        (|c| c.sharing = Sharing::Groups(9), "9 layer groups for 4 layers"),
        (|c| c.hidden_dropout_prob = 1.0, "`hidden_dropout_prob` is 1"),
        (|c| c.attention_probs_dropout_prob = f64::NAN, "`attention_probs_dropout_prob` is NaN"),
        (|c| c.layer_norm_eps = 0.0, "`layer_norm_eps` is 0"),
        (|c| c.initializer_range = -1.0, "`initializer_range` is -1"),
        (|c| c.eos_token_id = 4096, "`eos_token_id` is 4096, but `vocab_size` is 4096"),
        (
            |c| {
                c.sharing = Sharing::Attention;
                c.inner_group_num = 2;
            },
            "requires `inner_group_num` = 1",
        ),
    ];
    for (change, expected) in cases {
        let mut config = AlbertConfig::preset("tiny").unwrap();
        change(&mut config);
        let message = config.validate().expect_err(expected).to_string();
        assert!(message.contains(expected), "{message:?} does not contain {expected:?}");
    }
}

#[test]
fn refuses_files_that_describe_another_function() {
    for (text, expected) in [
        ("[1]".to_owned(), "found a list"),
        (with(HF_BASE_V2, "gelu_new", "swish"), "\"gelu_new\" (tanh form)"),
        (with(HF_BASE_V2, "\"albert\"", "\"roberta\""), "`model_type` is \"roberta\""),
        (with(HF_BASE_V2, "\"gap_size\": 0", "\"position_embedding_type\": \"relative_key\""), "\"absolute\""),
        (with(HF_BASE_V2, "\"gap_size\": 0", "\"tie_word_embeddings\": false"), "uses the word embeddings"),
        (with(HF_BASE_V2, "\"num_hidden_groups\": 1", "\"num_hidden_groups\": 13"), "`num_hidden_groups` is 13"),
        (with(HF_BASE_V2, "\"gap_size\": 0", "\"sharing\": \"attention\""), "makes 12 layer groups"),
    ] {
        let message = AlbertConfig::from_hf_json(&text).expect_err(expected).to_string();
        assert!(message.contains(expected), "{message:?} does not contain {expected:?}");
    }
    let unknown = toml::from_str::<AlbertConfig>("hiden_size = 3").unwrap_err().to_string();
    assert!(unknown.contains("hiden_size"), "{unknown}");
    let message = AlbertConfig::preset("huge").unwrap_err().to_string();
    assert!(message.contains("`huge`") && message.contains("xxlarge-v2"), "{message}");
}
