"""Metrics of the dispatcher. Counters exist from the start, at 0, for every label value."""

from prometheus_client import CollectorRegistry, Counter, Gauge

from eyas.dispatcher.core.course import STAGES
from eyas.dispatcher.core.policy import OUTCOMES, PHASES

ITEM_STATES = ("ok", "truncated", "failed", "in_flight", "waiting", "uncommitted")
TOKEN_KINDS = ("generated", "useful", "regenerated")


class Metrics:
    """Of the run that is worked on."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.timeouts = Counter("eyas_timeouts", "Attempts that ended in a timeout.", ["phase"], registry=registry)
        self.attempts = Counter("eyas_attempts", "Attempts by outcome.", ["outcome"], registry=registry)
        self.items = Gauge("eyas_items", "Items of the stage by state.", ["state"], registry=registry)
        self.tokens = Counter(
            "eyas_tokens", "Tokens taken from servers; useful: in answers or continuable.", ["kind"], registry=registry
        )
        self.limit = Gauge("eyas_limit", "Requests allowed at once.", ["endpoint"], registry=registry)
        self.in_flight = Gauge("eyas_in_flight", "Requests now.", ["endpoint"], registry=registry)
        self.uncommitted_bytes = Gauge("eyas_uncommitted_bytes", "Answers not yet durable.", registry=registry)
        self.uncommitted_age = Gauge(
            "eyas_uncommitted_age_seconds", "Age of the oldest answer not yet durable.", registry=registry
        )
        self.lease_losses = Counter("eyas_lease_losses", "Items whose generator fell silent.", registry=registry)
        self.stage = Gauge("eyas_stage", "1 for the stage that is worked on.", ["stage"], registry=registry)
        for phase in PHASES:
            self.timeouts.labels(phase)
        for outcome in OUTCOMES:
            self.attempts.labels(outcome)
        for state in ITEM_STATES:
            self.items.labels(state)
        for kind in TOKEN_KINDS:
            self.tokens.labels(kind)
        for name in STAGES.values():
            self.stage.labels(name)
