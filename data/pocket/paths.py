"""Where the data of the checkout is."""

from jot.models import home

TASKS = home() / "data" / "tasks"
MODELS = home() / "data" / "models"
