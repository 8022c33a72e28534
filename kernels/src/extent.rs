//! Elements that a matrix takes up in memory: the one place that multiplies rows by columns and strides.
//!
//! Bounds of unsafe code follow from these numbers, and callers choose the factors. So nothing wraps: what exceeds `usize` is
//! `usize::MAX`, and no slice of elements is as long (a slice has at most `isize::MAX` bytes). A comparison of a length with
//! an extent is therefore right in every build.

/// Elements from the first to the last of `rows` x `columns`, rows `leading` apart; 0 if the matrix is empty.
#[inline(always)]
pub(crate) const fn span(rows: usize, columns: usize, leading: usize) -> usize {
    if rows == 0 || columns == 0 { 0 } else { index(rows - 1, leading, columns) }
}

/// Elements of `rows` x `columns` without gaps.
#[inline(always)]
pub(crate) const fn area(rows: usize, columns: usize) -> usize {
    rows.saturating_mul(columns)
}

/// Position of (`row`, `column`), rows `leading` apart.
#[inline(always)]
pub(crate) const fn index(row: usize, leading: usize, column: usize) -> usize {
    row.saturating_mul(leading).saturating_add(column)
}
