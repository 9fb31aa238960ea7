//! Chat templates in the language of Go's `text/template`, which Ollama reads.
//!
//! The Jinja template is not translated. It renders conversations whose messages are single characters, and the text
//! around these characters becomes the Go template. Messages of a role must look alike, except the first and the last
//! one. Other conversations then show whether both templates agree.
//!
//! A Go template can neither trim a message nor find a thought in it. So white space around messages stays, and so
//! do the thoughts of earlier answers. If the last message is the assistant's, the model continues it.

use super::jinja::{Ending, Jinja};
use super::{ChatTemplate, Message, Role, WrittenTemplate};
use Role::{Assistant, System, User};

/// A clause for a template that does not consist of [`Parts`].
const VARIES: &str = "it does not write all messages of a role in the same way";

const CONTENT: &str = "{{ .Content }}";

/// The text around the messages of a conversation.
struct Parts {
    begin: String,
    /// The text in place of a system message, for a conversation that does not begin with one.
    no_system: String,
    before_first_system: String,
    before_system: String,
    after_system: String,
    before_user: String,
    after_user: String,
    before_answer: String,
    before_last_answer: String,
    after_answer: String,
    /// The text after the last message if it is not the assistant's.
    opening: String,
}

impl ChatTemplate {
    /// Returns the template in the language of Go's `text/template`, with the fields that Ollama gives it. It leaves
    /// out the token that llama.cpp puts before each prompt. The error is a clause that says why the template cannot
    /// be expressed.
    pub fn go(&self) -> Result<String, String> {
        let name = |id: u32| self.specials().find(|(special, _)| *special == id);
        let name = |id: u32| name(id).map(|(_, name)| name.to_owned()).unwrap_or_default();
        let own = |text| {
            let names = [("bos_token".to_owned(), name(self.begin))].into();
            Jinja::parse(WrittenTemplate { text, names })
        };
        let folder = self.folder.as_ref();
        let jinja = folder.map_or_else(|| own(self.jinja()), |folder| Ok(folder.jinja.clone()))?;
        // As in `Vocabulary::adds_begin`.
        let adds = folder.is_some() && self.base.names().is_some_and(|names| names.adds_begin);
        let added = self.named("bos_token").or(self.base.named("bos_token")).filter(|_| adds);
        let begin = added.or(Some(self.begin).filter(|_| !self.is_separated()));
        let mut parts = Parts::find(&jinja, &begin.map(name).unwrap_or_default())?;
        parts.check(&jinja)?;
        if added.is_some() {
            parts.begin.clear();
        }
        Ok(parts.go())
    }
}

impl Parts {
    /// Finds the parts of a template. `begin` is the token that may begin a conversation.
    fn find(jinja: &Jinja, begin: &str) -> Result<Self, String> {
        let around = |roles: &[Role]| around(jinja, roles, Ending::Nothing);
        let rest = |text: &str, start: &str| text.strip_prefix(start).map(str::to_owned);
        let user = around(&[User])?;
        let answered = around(&[User, Assistant])?;
        let asked = around(&[User, Assistant, User])?;
        let system = around(&[System, User])
            .map_err(|reason| format!("it fails for a system message: {reason}"))?;
        let later = around(&[User, Assistant, System, User]).ok();
        let opened = self::around(jinja, &[User], Ending::Answer)?;

        let (after_user, after_answer) = (&user[1], &answered[2]);
        let starts = |text: &String| text.starts_with(begin);
        let begin = if starts(&user[0]) && starts(&system[0]) { begin } else { "" };
        let found = || {
            let before_user = rest(&asked[2], after_answer)?;
            let no_system = user[0].strip_suffix(&before_user)?;
            let before_first_system = rest(&system[0], begin)?;
            // A template may refuse a system message that is not the first.
            let later = later.filter(|later| later[3] == system[1]);
            let later = later.and_then(|later| rest(&later[2], after_answer));
            Some(Self {
                begin: begin.to_owned(),
                no_system: rest(no_system, begin)?,
                before_system: later.unwrap_or_else(|| before_first_system.clone()),
                before_first_system,
                after_system: system[1].strip_suffix(&before_user)?.to_owned(),
                before_user,
                after_user: after_user.clone(),
                before_answer: rest(&asked[1], after_user)?,
                before_last_answer: rest(&answered[1], after_user)?,
                after_answer: after_answer.clone(),
                opening: rest(&opened[1], after_user)?,
            })
        };
        found().ok_or_else(|| VARIES.to_owned())
    }

    /// Compares conversations with their text in Jinja. White space around messages may differ.
    fn check(&self, jinja: &Jinja) -> Result<(), String> {
        let roles = [System, User, Assistant, User, Assistant, User, Assistant];
        let ranges = (2..=roles.len()).flat_map(|end| [0..end, 1..end]);
        for (range, space) in ranges.flat_map(|range| [(range.clone(), ""), (range, " \n")]) {
            let content = |at| format!("{space}{at}  {{{{ x }}}}\n\n\"{at}\"{space}");
            let messages = range.map(|at| Message::new(roles[at], content(at)));
            let messages: Vec<_> = messages.collect();
            let is_answered = messages.last().is_some_and(|last| last.role == Assistant);
            let ending = if is_answered { Ending::Nothing } else { Ending::Answer };
            let end = if is_answered { self.after_answer.as_str() } else { "" };
            let compared = |text: String| match space {
                "" => text,
                _ => text.split_whitespace().collect(),
            };
            let own = compared(self.render(&messages) + end);
            if own != compared(jinja.render(&messages, ending)?) {
                return Err(VARIES.to_owned());
            }
        }
        Ok(())
    }

    /// Renders a conversation as the Go template does.
    fn render(&self, messages: &[Message]) -> String {
        let mut text = self.begin.clone();
        for (at, Message { role, content }) in messages.iter().enumerate() {
            let is_last = at + 1 == messages.len();
            if at == 0 && *role != System {
                text += &self.no_system;
            }
            let [before, after] = match role {
                System if at == 0 => [&*self.before_first_system, &self.after_system],
                System => [&*self.before_system, &self.after_system],
                User => [&*self.before_user, &self.after_user],
                Assistant if is_last => [&*self.before_last_answer, ""],
                Assistant => [&*self.before_answer, &self.after_answer],
            };
            text.extend([before, content, after]);
            if is_last && *role != Assistant {
                text += &self.opening;
            }
        }
        text
    }

    fn go(&self) -> String {
        let system = either("eq $i 0", &self.before_first_system, &self.before_system);
        let answer = either("$last", &self.before_last_answer, &self.before_answer);
        let user = literal(&self.before_user);
        let [after_system, after_user] = [&self.after_system, &self.after_user].map(literal);
        let after_answer = either("not $last", &self.after_answer, "");
        let no_system = either("and (eq $i 0) (ne .Role \"system\")", &self.no_system, "");
        let opening = either("and $last (ne .Role \"assistant\")", &self.opening, "");
        let lines = [
            literal(&self.begin),
            "{{- range $i, $_ := .Messages }}".to_owned(),
            "{{- $last := eq (len (slice $.Messages $i)) 1 }}".to_owned(),
            no_system,
            ["{{- if eq .Role \"system\" }}", &system, CONTENT, &after_system].concat(),
            ["{{- else if eq .Role \"user\" }}", &user, CONTENT, &after_user].concat(),
            ["{{- else if eq .Role \"assistant\" }}", &answer, CONTENT, &after_answer].concat(),
            "{{- end }}".to_owned(),
            opening,
            "{{- end }}".to_owned(),
        ];
        lines.into_iter().filter(|line| !line.is_empty()).collect::<Vec<_>>().join("\n")
    }
}

/// Renders a character for each message, and returns the text before, between and after them.
fn around(jinja: &Jinja, roles: &[Role], ending: Ending) -> Result<Vec<String>, String> {
    let marks: Vec<char> = ('\u{e000}'..).take(roles.len()).collect();
    let messages = roles.iter().zip(&marks).map(|(role, mark)| Message::new(*role, *mark));
    let text = jinja.render(&messages.collect::<Vec<_>>(), ending)?;
    if !text.chars().filter(|c| marks.contains(c)).eq(marks.iter().copied()) {
        return Err("it does not write each message once, in their order".to_owned());
    }
    Ok(text.split(&marks[..]).map(str::to_owned).collect())
}

/// Returns a template that writes `text`. Ollama drops invisible characters of a Modelfile, so they are escaped.
fn literal(text: impl AsRef<str>) -> String {
    let escaped = |c: char| match c {
        '\n' => "\\n".to_owned(),
        '"' | '\\' => format!("\\{c}"),
        ' '..='~' => c.to_string(),
        _ => format!("\\U{:08x}", u32::from(c)),
    };
    let escaped: String = text.as_ref().chars().map(escaped).collect();
    if escaped.is_empty() { escaped } else { format!("{{{{ \"{escaped}\" }}}}") }
}

/// Returns a template that writes `yes` if a condition holds, else `no`. It may begin a line.
fn either(condition: &str, yes: &str, no: &str) -> String {
    if yes == no {
        return literal(yes);
    }
    let no = literal(no);
    let no = if no.is_empty() { no } else { format!("{{{{ else }}}}{no}") };
    format!("{{{{- if {condition} }}}}{}{no}{{{{ end }}}}", literal(yes))
}
