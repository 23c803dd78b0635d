def test_one_session(spark) -> None:
    assert spark.range(10).count() == 10
