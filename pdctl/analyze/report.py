"""placeholder"""

from pdctl.analyze.answer import Answer, Plots


def page(answer: Answer, plots: Plots) -> str:
    """x"""
    return ""
