"""What steps are done with: small numbers, cells of a few statements, some ranks, a moment."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.chance.model import DATA, LISTS, NUMBERS, Statement

SMALL = st.integers(0, 9)
STATEMENTS = st.lists(
    st.one_of(
        st.builds(Statement, st.just("set"), st.sampled_from([*NUMBERS, *LISTS]), number=SMALL),
        st.builds(
            Statement,
            st.just("add"),
            st.sampled_from(NUMBERS),
            st.sampled_from(NUMBERS),
            number=SMALL,
        ),
        st.builds(Statement, st.just("append"), st.sampled_from(LISTS), number=SMALL),
        st.builds(Statement, st.just("join"), st.sampled_from(LISTS), number=SMALL),
        st.builds(Statement, st.just("measure"), st.sampled_from(NUMBERS), st.sampled_from(DATA)),
    ),
    max_size=4,
)
SOME = st.integers(1, 15)  # a bit for each rank that there may be
LINES = st.sampled_from([0, 1, 7, 300])
MOMENT = st.sampled_from([0.0, 0.001, 0.003, 0.01, 0.03, 0.1])  # seconds
