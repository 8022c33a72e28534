//! RACE accuracy by school level.

use albert::mean::Proportion;
use serde::{Deserialize, Serialize};

/// School level of a RACE example. Accuracy is reported for each level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// Middle school.
    Middle,
    /// High school.
    High,
}

/// Accuracy by level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LevelAccuracy {
    /// Middle school.
    pub middle: Proportion,
    /// High school.
    pub high: Proportion,
}

impl LevelAccuracy {
    /// Counts a question.
    pub(crate) fn add(&mut self, level: Level, is_correct: bool) {
        let part = match level {
            Level::Middle => &mut self.middle,
            Level::High => &mut self.high,
        };
        part.add(u64::from(is_correct), 1);
    }

    /// Accuracy over all questions, which is not the mean of the two.
    #[cfg(test)]
    pub(crate) fn all(&self) -> Proportion {
        let mut all = self.middle;
        all.add(self.high.correct, self.high.count);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_questions_weigh_the_same() {
        let mut accuracy = LevelAccuracy::default();
        for (level, is_correct) in
            [(Level::Middle, true), (Level::High, false), (Level::High, false), (Level::High, true)]
        {
            accuracy.add(level, is_correct);
        }
        assert_eq!(accuracy.middle.value(), Some(1.0));
        assert_eq!(accuracy.high.value(), Some(1.0 / 3.0));
        assert_eq!(accuracy.all().value(), Some(0.5));
    }
}
