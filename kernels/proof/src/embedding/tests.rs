use super::reference;
use crate::check::*;
use kernels::embedding::*;

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
