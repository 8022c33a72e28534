use super::reference;
use crate::check::*;
use kernels::embedding::*;
use std::panic::{AssertUnwindSafe, catch_unwind};

#[test]
fn is_bit_identical_for_any_thread_count_and_to_adding_token_by_token() {
    let (tokens, vocabulary, width) = (2000, 300, 129);
    let ids = super::ids(1, tokens, vocabulary);
    let (dout, before) = (uniform::<f32>(2, tokens * width, 1.0), uniform::<f32>(3, vocabulary * width, 1.0));
    let one_by_one = reference::backward::<f32>(width, &ids, &dout, &before);
    assert_same_for_any_thread_count(&"[2000, 129]", |cpu| {
        let mut dtable = before.clone();
        backward(cpu, width, &ids, &dout, &mut dtable, &mut vec![0; backward_scratch_len(tokens, vocabulary)]);
        assert_eq!(dtable, one_by_one);
        dtable
    });
}

#[test]
fn an_id_beyond_the_table_is_refused() {
    let cpu = &testable_cpus()[0];
    let refused = |f: &mut dyn FnMut()| catch_unwind(AssertUnwindSafe(f)).is_err();
    let mut out = [0.0f32; 4];
    let lookup = Lookup { ids: &[3], table: &[0.0; 12] };
    assert!(refused(&mut || forward(cpu, 4, [lookup], &mut out)));
    assert!(refused(&mut || backward(cpu, 4, &[3], &[1.0f32; 4], &mut [0.0; 12], &mut [0; 5])));
}
