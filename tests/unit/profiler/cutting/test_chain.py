"""Chains of engines for planners: which cuts they have."""

from profiler.cutting.chain import MAX_CUTS, planned_cuts
from profiler.cutting.cuts import Cut
from profiler.measuring.stages import measured_cuts


def cut(position: int, work: float, size_bytes: int = 1, *, seam: bool = True) -> Cut:
    return Cut(
        position=position,
        tensor=f"t{position}",
        datatype="FP32",
        shape=(1,),
        size_bytes=size_bytes,
        weights_before=0,
        weights_after=0,
        work=work,
        seam=seam,
        exact=seam,
    )


def test_plans_have_seams_only_unless_there_are_none() -> None:
    cuts = [cut(1, 0.1), cut(2, 0.2, seam=False), cut(3, 0.3)]
    assert [each.position for each in planned_cuts(cuts)] == [1, 3]
    assert [each.position for each in planned_cuts(cuts[1:2])] == [2]


def test_each_share_of_the_work_keeps_its_smallest_tensor() -> None:
    count = 10 * MAX_CUTS
    cuts = [cut(n, (n - 0.5) / count, 1 if n % 10 == 3 else 2) for n in range(1, count + 1)]
    planned = planned_cuts(cuts)
    assert [each.position for each in planned] == list(range(3, count, 10))
    assert len(planned) == MAX_CUTS


def test_the_profiler_measures_every_third_cut_that_plans_have() -> None:
    cuts = [cut(n, n / 5000) for n in range(1, 5000)]
    measured = measured_cuts(cuts)
    assert measured == planned_cuts(cuts)[1::3]
    assert len(measured) == MAX_CUTS / 3
    assert measured_cuts(cuts[:1]) == cuts[:1]
