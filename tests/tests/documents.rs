//! Files of the project that crates cannot test, because they are outside of them.

use albert::{
    ablate::{Plan, Variant},
    pretrain::PretrainRecipe,
};

#[test]
fn the_readme_shows_the_recorded_losses() {
    let (readme, recorded) = (include_str!("../../README.md"), include_str!("../../cli/src/commands/verify.txt"));
    let losses =
        recorded.lines().find_map(|line| line.strip_prefix("pre-training f32: loss ")).expect("they are recorded");
    let mut shown = 0;
    for (step, loss) in (1..).zip(losses.split(' ')).filter(|&(step, _)| step == 1 || step % 10 == 0) {
        // As `albert doctor --verify` prints it.
        let line = format!("                  step {step:>2}  {loss}\n");
        assert!(readme.contains(&line), "{line} is expected in README.md");
        shown += 1;
    }
    assert_eq!(shown, 6);
}

#[test]
fn the_plans_that_come_with_the_project_can_be_run() {
    for (text, count) in [
        (include_str!("../../benches/tasks/ablation.toml"), 9),
        (include_str!("../../benches/tasks/ablation-depth-width.toml"), 7),
    ] {
        let plan = Plan::from_toml(text).expect("it is a plan");
        let budgets: Vec<_> = plan.variants(4096).expect("its rows are recipes").iter().map(Variant::budget).collect();
        assert_eq!(budgets.len(), count, "{budgets:?}");
        assert!(budgets.iter().all(|budget| budget.tokens == budgets[0].tokens), "{budgets:?}");
    }
    let own = PretrainRecipe::from_toml(include_str!("../../benches/tasks/own.toml"), &[]).expect("it is a recipe");
    own.with_vocabulary(8192).expect("it takes a vocabulary");
}
