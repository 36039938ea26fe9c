def pytest_addoption(parser):
    parser.addoption(
        "--startup_rounds",
        type=int,
        default=10,
        help="Cluster starts in tests/multi_process/startup_test.py.",
    )
