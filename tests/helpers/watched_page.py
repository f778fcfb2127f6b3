"""A browser page whose messages and requests are recorded."""

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Watched:
    """What a browser's page reports and requests."""

    page: Any
    """Playwright's page."""
    complaints: list[str] = field(default_factory=list)
    """Console messages, errors and dialogs."""
    requests: list[str] = field(default_factory=list)
    """Addresses requested, including the page's own."""

    def __post_init__(self) -> None:
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: self.complaints.append(dialog.message))
        self.page.on("request", lambda request: self.requests.append(request.url))
