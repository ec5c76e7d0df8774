"""Tests of the Settings node on the page: a list of presets with plain names, and advanced inputs for numbers."""

import pytest

NAMES = ["Auto", "ADT-Tree", "EAGLE-2", "No drafting", "Static: mc_sim_7b_63", "Static: naive_extend_57", "Predicted"]


def settings(tab, expression: str):
    """Evaluate a JavaScript expression about the node (``node``) and its first widget (``method``)."""
    found = "const node = app.graph.nodes.find((one) => one.type === 'ADTTreeSettings'); const [method] = node.widgets;"
    return tab.page.evaluate(f"(() => {{ {found} return {expression}; }})()")


@pytest.mark.smoke
def test_preset_is_listed_by_name_and_saved_by_method(tab, workflow):
    tab.load(workflow.method("auto").data)
    visible = "node.widgets.filter((one) => node.isWidgetVisible(one)).map((one) => one.name)"
    assert settings(tab, visible) == ["method"]
    assert settings(tab, "node.size[1]") < 150, "the node must have no empty space"
    shown = tab.page.locator("[data-node-id]").filter(has_text="ADT-Tree Settings")
    if tab.vue:
        shown.get_by_text("Auto", exact=True).click()
        offered = tab.page.locator("[role=option]")
        assert [text.strip() for text in offered.all_text_contents()] == NAMES
        offered.get_by_text("EAGLE-2", exact=True).click()
    else:
        assert settings(tab, "method._displayValue") == "Auto"
        x, y, width = settings(tab, "[node.pos[0], node.pos[1] + method.y, node.size[0]]")
        at = tab.page.evaluate("([x, y]) => app.canvasPosToClientPos([x, y])", [x + width / 2, y + 10])
        tab.page.mouse.click(*at)
        offered = tab.page.locator(".litecontextmenu .litemenu-entry")
        assert [text.strip() for text in offered.all_text_contents()] == NAMES
        offered.get_by_text("EAGLE-2", exact=True).click()
    assert settings(tab, "node.serialize().widgets_values[0]") == "eagle2"
    tab.screenshot("settings")
    if tab.vue:
        assert not shown.get_by_text("depth_max", exact=True).count()
        shown.get_by_text("Show advanced inputs").click()
        shown.get_by_text("depth_max", exact=True).wait_for()
    else:
        settings(tab, "node.toggleAdvanced()")
    assert len(settings(tab, visible)) == 17
    tab.screenshot("settings_advanced")
