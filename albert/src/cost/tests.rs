use super::*;
use crate::config::{Heads, Sharing};

fn preset(name: &str) -> AlbertConfig {
    AlbertConfig::preset(name).unwrap()
}

const FOUR: [&str; 4] = ["base", "large", "xlarge", "xxlarge"];

#[test]
fn components_equal_the_released_checkpoints() {
    type Component = fn(&ParameterCounts) -> u64;
    let rows: [(&str, Component, [u64; 4]); 8] = [
        ("embeddings", |c| c.embeddings(), [3_906_048; 4]),
        ("embedding map", |c| c.embedding_map, [99_072, 132_096, 264_192, 528_384]),
        ("attention block", |c| c.attention_block, [2_363_904, 4_200_448, 16_789_504, 67_133_440]),
        ("ffn block", |c| c.ffn_block, [4_723_968, 8_395_776, 33_568_768, 134_246_400]),
        ("layers", |c| c.layers(), [7_087_872, 12_596_224, 50_358_272, 201_379_840]),
        ("pooler", |c| c.pooler, [590_592, 1_049_600, 4_196_352, 16_781_312]),
        ("mlm head", |c| c.mlm_head, [128_688, 161_456, 292_528, 554_672]),
        ("sop head", |c| c.sop_head, [1_538, 2_050, 4_098, 8_194]),
    ];
    for (name, component, expected) in rows {
        for (config, expected) in FOUR.iter().zip(expected) {
            assert_eq!(component(&ParameterCounts::new(&preset(config))), expected, "{name} of {config}");
        }
    }
}

/// Computed by hand: base at 4,096 x 512 is 1.20 PFLOP and 47.3 MB of gradients.
#[test]
fn the_time_on_several_ranks_is_that_of_the_formula() {
    let workload = Workload { sequences: 4096, sequence_length: 512, masked_per_sequence: 77 };
    let link = Link { bytes_per_second: 1.125e9, latency: 20e-6 };
    let of = |ranks| Scaled::new(&preset("base"), &workload, (64, ranks), 4e14, link);
    let (one, three, all) = (of(1), of(3), of(64));
    assert_eq!((one.exchange, one.efficiency), (0.0, 1.0));
    assert!((one.compute - 3.0).abs() < 0.02, "{one:?}");
    assert!((all.compute - one.compute / 64.0).abs() < 1e-12);
    let sent = 2.0 * 63.0 / 64.0 * 4.0 * 11_813_810.0;
    assert!((all.exchange - (sent / 1.125e9 + 12.0 * 20e-6)).abs() < 1e-9, "{all:?}");
    assert!((all.efficiency - 0.36).abs() < 0.01, "{all:?}");
    // 64 lanes on 3 ranks: 21, 21, 22; the second has 21..42, which is 21, 22..24, 24..32, 32..40, 40..42.
    assert!((three.compute - one.compute * 22.0 / 64.0).abs() < 1e-12);
    let sent = (5.0 + 1.0) * 2.0 / 3.0 * 4.0 * 11_813_810.0;
    assert!((three.exchange - (sent / 1.125e9 + 4.0 * 20e-6)).abs() < 1e-9, "{three:?}");
}

#[test]
fn totals_equal_the_released_checkpoints_with_every_head() {
    let rows: [(Heads, [u64; 4]); 10] = [
        (Heads::MODEL, [11_683_584, 17_683_968, 58_724_864, 222_595_584]),
        (Heads::ENCODER, [11_092_992, 16_634_368, 54_528_512, 205_814_272]),
        (Heads::MASKED_LM, [11_221_680, 16_795_824, 54_821_040, 206_368_944]),
        (Heads::PRE_TRAINING, [11_813_810, 17_847_474, 59_021_490, 223_158_450]),
        (Heads::sequence_classification(2), [11_685_122, 17_686_018, 58_728_962, 222_603_778]),
        (Heads::sequence_classification(3), [11_685_891, 17_687_043, 58_731_011, 222_607_875]),
        (Heads::token_classification(9), [11_099_913, 16_643_593, 54_546_953, 205_851_145]),
        (Heads::MULTIPLE_CHOICE, [11_684_353, 17_684_993, 58_726_913, 222_599_681]),
        (Heads::QUESTION_ANSWERING, [11_094_530, 16_636_418, 54_532_610, 205_822_466]),
        (Heads::SQUAD_V2, [14_048_258, 21_885_442, 75_516_418, 289_733_122]),
    ];
    for (head, expected) in rows {
        for (config, expected) in FOUR.iter().zip(expected) {
            assert_eq!(ParameterCounts::with_heads(&preset(config), head), expected, "{head} of {config}");
        }
    }
}

#[test]
fn sharing_and_embedding_size_give_the_known_counts() {
    let rows: [(Sharing, [u64; 4]); 5] = [
        (Sharing::All, [9_681_408, 11_683_584, 15_687_936, 31_114_752]),
        (Sharing::Attention, [61_645_056, 63_647_232, 67_651_584, 83_078_400]),
        (Sharing::Ffn, [35_684_352, 37_686_528, 41_690_880, 57_117_696]),
        (Sharing::None, [87_648_000, 89_650_176, 93_654_528, 109_081_344]),
        // One set of layers more than with all shared.
        (Sharing::Groups(2), [16_769_280, 18_771_456, 22_775_808, 38_202_624]),
    ];
    for (sharing, expected) in rows {
        for (embedding_size, expected) in [64, 128, 256, 768].into_iter().zip(expected) {
            let config = AlbertConfig { sharing, embedding_size, ..preset("base") };
            assert_eq!(ParameterCounts::with_heads(&config, Heads::MODEL), expected, "{sharing}, E = {embedding_size}");
        }
    }
    assert_eq!(ParameterCounts::with_heads(&preset("bert-base"), Heads::MODEL), 109_081_344);
}

#[test]
fn compute_parameters_and_normalized_cost_equal_the_formula() {
    let rows = [(89_462_784, 2.345e19), (307_009_536, 8.048e19), (1_216_256_000, 3.188e20), (2_437_060_608, 6.389e20)];
    for (name, (parameters, cost)) in FOUR.iter().zip(rows) {
        let config = preset(name);
        assert_eq!(compute_parameters(&config), parameters, "{name}");
        let counted = normalized_cost(&config, RELEASED_STEPS, RELEASED_TOKENS_PER_BATCH);
        assert!((counted / cost - 1.0).abs() < 5e-4, "{name}: {counted:e}, expected {cost:e}");
    }
}

const WORKLOAD: Workload = Workload { sequences: 4, sequence_length: 512, masked_per_sequence: 77 };

#[test]
fn a_layers_operations_are_twice_its_weights_a_token_plus_the_scores() {
    for name in FOUR {
        let config = preset(name);
        let forward = Flops::forward(&config, &WORKLOAD);
        let (h, n, t) = (config.hidden_size as f64, config.num_hidden_layers as f64, 2048.0);
        let weights = n * 12.0 * h * h;
        assert_eq!(forward.attention_projections + forward.ffn, 2.0 * t * weights, "{name}");
        assert_eq!(forward.attention_scores, n * t * 4.0 * 512.0 * h, "{name}");
        // The masked-only head: 77 of 512 positions instead of all of them.
        let everywhere = Flops::forward(&config, &Workload { masked_per_sequence: 512, ..WORKLOAD });
        assert!((everywhere.mlm_head / forward.mlm_head - 512.0 / 77.0).abs() < 1e-9, "{name}");
    }
}

#[test]
fn sharing_changes_parameters_but_not_operations() {
    let shared = preset("base");
    let own = AlbertConfig { sharing: Sharing::None, ..shared.clone() };
    assert_eq!(Flops::forward(&shared, &WORKLOAD), Flops::forward(&own, &WORKLOAD));
    assert!(ParameterCounts::new(&own).layers() == 12 * ParameterCounts::new(&shared).layers());
}

#[test]
fn checkpointing_trades_memory_for_operations() {
    let config = preset("base");
    let at = |checkpointing| {
        let training = Training { activation_bytes: 4, checkpointing };
        (Memory::new(&config, &WORKLOAD, &training).activations, Flops::training(&config, &WORKLOAD, checkpointing))
    };
    let (none, cheap, layer) = (at(Recompute::None), at(Recompute::Cheap), at(Recompute::Layer));
    assert!(none.0 > cheap.0 && cheap.0 > layer.0, "bytes {none:?} {cheap:?} {layer:?}");
    assert!(none.1 == cheap.1 && cheap.1 < layer.1, "operations {none:?} {cheap:?} {layer:?}");
    let narrow = Training { activation_bytes: 2, checkpointing: Recompute::None };
    let memory = Memory::new(&config, &WORKLOAD, &narrow);
    assert!(memory.activations < none.0 * 6 / 10 && memory.parameters == 11_813_810 * 6, "{memory:?}");
}

#[test]
fn the_report_is_complete_json() {
    let training = Training { activation_bytes: 4, checkpointing: Recompute::None };
    let report = Report::new(&preset("base"), WORKLOAD, training);
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["components"]["word_embeddings"], 3_840_000);
    assert_eq!(json["heads"].as_array().unwrap().len(), LISTED.len());
    assert_eq!(json["heads"][3]["head"], "AlbertForPreTraining");
    assert_eq!(json["heads"][3]["parameters"], 11_813_810);
    assert_eq!(json["compute_parameters"], 89_462_784);
    assert!(json["training_flops_per_token"].as_f64().unwrap() > 3.0 * 2.0 * 85e6);
}
