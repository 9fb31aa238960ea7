//! Widgets that several rooms draw.

use eframe::egui::{
    self, Align, Button, Color32, IntoAtoms, Key, Label, Layout, Response, RichText, TextEdit, Ui,
};

use super::intent::Intent;
use super::state::Room;

/// Draws text that breaks at the edge of the room.
pub fn wrapped(ui: &mut Ui, text: impl Into<RichText>) -> Response {
    ui.add(Label::new(text.into()).wrap())
}

pub fn note(ui: &mut Ui, text: impl Into<String>, color: Color32) -> Response {
    wrapped(ui, RichText::new(text).small().color(color))
}

pub fn weak_note(ui: &mut Ui, text: impl Into<String>) {
    note(ui, text, ui.visuals().weak_text_color());
}

/// Draws a button that is disabled if there is a reason for it. Returns true if it was clicked. An
/// empty reason has no tooltip.
pub fn action(ui: &mut Ui, button: Button<'_>, disabled: Option<&str>, help: &str) -> bool {
    let response = ui.add_enabled(disabled.is_none(), button);
    match disabled {
        None => response.on_hover_text(help).clicked(),
        Some("") => false,
        Some(reason) => response.on_disabled_hover_text(reason).clicked(),
    }
}

/// Draws a button with this text, as [`action`] does.
pub fn button<'a>(
    ui: &mut Ui,
    text: impl IntoAtoms<'a>,
    disabled: Option<&str>,
    help: &str,
) -> bool {
    action(ui, Button::new(text), disabled, help)
}

/// Draws a dialog. Returns true if it was confirmed, false if it was closed: by a button, by Escape,
/// or by a click next to it.
pub fn dialog(
    ui: &Ui,
    name: &str,
    width: f32,
    add: impl FnOnce(&mut Ui) -> Option<bool>,
) -> Option<bool> {
    let modal = egui::Modal::new(egui::Id::unique(name)).show(ui.ctx(), |ui| {
        ui.set_width(width);
        add(ui)
    });
    modal.inner.or(modal.should_close().then_some(false))
}

/// Draws the two buttons of a dialog. Returns true for the first one, false for the second.
pub fn decision<'a>(ui: &mut Ui, yes: impl IntoAtoms<'a>, no: &str) -> Option<bool> {
    ui.add_space(6.0);
    let buttons = |ui: &mut Ui| (ui.button(yes).clicked(), ui.button(no).clicked());
    match ui.horizontal(buttons).inner {
        (true, _) => Some(true),
        (_, true) => Some(false),
        _ => None,
    }
}

/// Draws the switch between the two rooms of a run. A room may not be there, for a reason.
pub fn room_switch(ui: &mut Ui, room: Room, no_model: Option<&str>) -> Option<Intent> {
    let mut chosen = None;
    // From right to left.
    for (other, text, help) in [
        (Room::Model, "Model", "Write to the model, look inside, export it, train it further"),
        (Room::Run, "Training", "Its curves, samples, log and settings"),
    ] {
        let button = Button::selectable(room == other, text);
        let missing = no_model.filter(|_| other == Room::Model);
        if action(ui, button, missing, help) && room != other {
            chosen = Some(Intent::Enter(other));
        }
    }
    chosen
}

/// Shows that a widget has the keyboard's focus, where egui does not.
pub fn focus_ring(ui: &Ui, response: &Response) {
    if response.has_focus() {
        let ring = ui.visuals().selection.stroke;
        ui.painter().rect_stroke(response.rect, 2.0, ring, egui::StrokeKind::Outside);
    }
}

/// Returns true if Enter was pressed in a field of one line.
pub fn entered(ui: &Ui, field: &Response) -> bool {
    field.lost_focus() && ui.input(|input| input.key_pressed(Key::Enter))
}

/// Gives the first field of a dialog the focus. Returns true if Enter was pressed in it.
pub fn dialog_field(ui: &Ui, field: &Response) -> bool {
    let entered = entered(ui, field);
    if !entered && ui.memory(|memory| memory.focused().is_none()) {
        field.request_focus();
    }
    entered
}

/// Draws a label in a cell of fixed width, at its left or its right end.
pub fn cell(ui: &mut Ui, width: f32, align: Align, label: Label) -> Response {
    let size = egui::vec2(width, ui.spacing().interact_size.y);
    let layout = if align == Align::Min { Layout::left_to_right } else { Layout::right_to_left };
    let cell = ui.allocate_ui_with_layout(size, layout(Align::Center), |ui| {
        ui.set_min_size(size);
        ui.add(label.truncate())
    });
    cell.inner
}

/// Draws a choice between values with a weak label before it.
pub fn combo<T: Copy + PartialEq>(
    ui: &mut Ui,
    label: &str,
    width: f32,
    (value, all): (&mut T, &[T]),
    text: impl Fn(T) -> String,
    help: &str,
) {
    let name = ui.weak(label);
    let combo = egui::ComboBox::from_id_salt(label).selected_text(text(*value)).width(width);
    let shown = combo.show_ui(ui, |ui| {
        for &choice in all {
            ui.selectable_value(value, choice, text(choice));
        }
    });
    shown.response.labelled_by(name.id).on_hover_text(help);
}

/// Width of the label before a row, in points.
const LABEL_WIDTH: f32 = 44.0;

/// Draws a labelled row. `add` receives the id of the label.
pub fn labelled_row<R>(ui: &mut Ui, name: &str, add: impl FnOnce(&mut Ui, egui::Id) -> R) -> R {
    ui.horizontal(|ui| {
        let label = cell(ui, LABEL_WIDTH, Align::Min, egui::Label::new(name));
        add(ui, label.id)
    })
    .inner
}

/// Width of the button next to a field, in points.
const BUTTON_WIDTH: f32 = 66.0;

/// Draws a field with room for a button next to it, and gives it the focus if that is requested.
pub fn field(ui: &mut Ui, name: &str, edit: TextEdit<'_>, focus: &mut bool) -> Response {
    let label = ui.label(name);
    let width = ui.available_width() - BUTTON_WIDTH - ui.spacing().item_spacing.x;
    let edit = ui.add(edit.desired_width(width.max(60.0))).labelled_by(label.id);
    if std::mem::take(focus) {
        edit.request_focus();
    }
    edit
}
