"""Provisioned throughput, as clients ask for it: a fixed number, or autoscale up to a maximum."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from leasehold.core import strict_json
from leasehold.endpoints.cosmos.refusals import Refusal

UNITS_MIN, AUTOSCALE_MIN, UNITS_MAX = 100, 1_000, 100_000
"""Request units per second."""
RANGE_UNITS, RANGE_AUTOSCALE_UNITS = 6_000, 10_000
"""What a range of a new container is made for, as in Azure."""
PERCENT_MAX = 100


class Throughput(NamedTuple):
    units_s: int
    """With autoscale: the maximum."""
    increment_percent: int | None = None
    autoscale: bool = False

    @classmethod
    def of_headers(cls, headers: Mapping[str, str]) -> Throughput | None:
        """What a new database or container is to get; None: the request does not say."""
        fixed = headers.get("x-ms-offer-throughput")
        scaled = headers.get("x-ms-cosmos-offer-autopilot-settings")
        if fixed is not None and scaled is not None:
            raise Refusal(400, "Give either a throughput or autoscale settings, not both.")
        if scaled is not None:
            try:
                return cls._of_settings(strict_json.loads(scaled.encode("latin-1")))
            except ValueError as error:
                raise Refusal(400, f"The autoscale settings are not JSON: {error}") from error
        return None if fixed is None else cls(_units(_number(fixed), UNITS_MIN))

    @classmethod
    def of_content(cls, content: Any) -> Throughput:
        """What an offer is to be replaced by."""
        if not isinstance(content, dict):
            raise Refusal(400, "An offer has its throughput in the object content.")
        settings = content.get("offerAutopilotSettings")
        if settings is not None:
            return cls._of_settings(settings)
        return cls(_units(content.get("offerThroughput"), UNITS_MIN))

    @classmethod
    def of_about(cls, about: Mapping[str, Any]) -> Throughput | None:
        """As ``about`` keeps it; None: it has none of its own."""
        units = about.get("throughput")
        if units is None:
            return None
        return cls(units, about.get("increment_percent"), about.get("autoscale", False))

    @classmethod
    def _of_settings(cls, settings: Any) -> Throughput:
        if not isinstance(settings, dict):
            raise Refusal(400, "Autoscale settings are an object with maxThroughput.")
        units = _units(settings.get("maxThroughput"), AUTOSCALE_MIN)
        upgrade = settings.get("autoUpgradePolicy")
        if upgrade is None:
            return cls(units, None, True)
        policy = upgrade.get("throughputPolicy") if isinstance(upgrade, dict) else None
        percent = policy.get("incrementPercent") if isinstance(policy, dict) else None
        if isinstance(percent, bool) or not isinstance(percent, int):
            raise Refusal(400, "autoUpgradePolicy needs throughputPolicy with incrementPercent.")
        if not 0 <= percent <= PERCENT_MAX:
            raise Refusal(400, f"incrementPercent is between 0 and {PERCENT_MAX}.")
        return cls(units, percent, True)

    @property
    def ranges(self) -> int:
        return -(-self.units_s // (RANGE_AUTOSCALE_UNITS if self.autoscale else RANGE_UNITS))

    def about(self) -> dict[str, Any]:
        return {
            "throughput": self.units_s,
            "increment_percent": self.increment_percent,
            "autoscale": self.autoscale,
        }

    def content(self) -> dict[str, Any]:
        if not self.autoscale:
            return {"offerThroughput": self.units_s}
        settings: dict[str, Any] = {"maxThroughput": self.units_s}
        if self.increment_percent is not None:
            policy = {"incrementPercent": self.increment_percent}
            settings["autoUpgradePolicy"] = {"throughputPolicy": policy}
        # As in Azure, what nobody uses is scaled down to a tenth.
        return {"offerThroughput": self.units_s // 10, "offerAutopilotSettings": settings}


def _number(text: str) -> Any:
    digits = text.strip().removeprefix("-")
    return int(text) if digits.isascii() and digits.isdigit() and len(digits) < 10 else text


def _units(given: Any, least: int) -> int:
    if isinstance(given, bool) or not isinstance(given, int):
        raise Refusal(400, f"A throughput is a whole number, not {given!r:.40}.")
    if given < least:
        raise Refusal(
            400,
            f"Requested throughput {given} is less than required minimum throughput {least}.",
        )
    if given > UNITS_MAX:
        raise Refusal(400, f"Requested throughput {given} is above {UNITS_MAX}.")
    return given
