"""``format("leasehold")``: hubs and change feeds as a Spark data source."""

from leasehold.spark.source.data_source import register

__all__ = ["register"]
