"""How late heartbeats are, beside a list of all of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cachelb.state.lag import Lag

STEPS = st.lists(st.tuples(st.floats(0.0, 1.0), st.floats(0.0, 5.0)), min_size=1, max_size=400)


@given(st.floats(-1e6, 1e6), STEPS)
def test_lag_is_measured_against_the_fastest_of_the_last_one_or_two_minutes(
    clocks_apart_s: float, steps: list[tuple[float, float]]
) -> None:
    lag, now, heard = Lag(), 0.0, list[tuple[float, float]]()
    for step_s, delay_s in steps:
        now += step_s
        lag.add(now - delay_s + clocks_apart_s, now)
        heard.append((now, delay_s))
        over_one, over_two = (
            delay_s - min(other for at, other in heard if at >= now - window_s) for window_s in (60.0, 121.0)
        )
        assert over_one - 1e-6 <= lag.late_s <= over_two + 1e-6


def test_a_delay_that_stays_is_forgotten_after_two_minutes() -> None:
    lag = Lag()
    for beat in range(2000):
        lag.add(0.25 * beat, 0.25 * beat + (1.0 if beat >= 400 else 0.0))
        if 400 <= beat < 640:
            assert lag.late_s == 1.0
    assert lag.late_s == 0.0
