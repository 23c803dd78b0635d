"""The room of the Spark data source `rocketmq`; Spark looks a data source up by this package's name."""
