//! Parts that all drawings share: one self-contained SVG, without scripts, external fonts or files, light or dark as
//! the viewer's theme.
//!
//! Patterns and words carry the meaning of a line; colour only repeats it.

use std::fmt;

/// Classes of all drawings.
const LIGHT: &str = "\
.paper{fill:#ffffff}
text{font:13px system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif;fill:#1c2430}
.title{font-size:17px;font-weight:600}
";
const DARK: &str = "\
.paper{fill:#12161c}
text{fill:#e4e9f0}
";

/// The frame of a drawing.
pub struct Document<'a> {
    /// Width in pixels.
    pub width: f64,
    /// Height in pixels.
    pub height: f64,
    /// Title, without markup.
    pub title: &'a str,
    /// Description for readers that do not see the drawing.
    pub about: &'a str,
    /// CSS of the drawing's own classes, and what differs on dark paper.
    pub style: [&'a str; 2],
}

impl Document<'_> {
    /// Returns the drawing with these elements.
    pub fn with(&self, elements: &str) -> String {
        let Document { width, height, title, about, style: [light, dark] } = self;
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
             height=\"{height}\" role=\"img\" aria-labelledby=\"title about\">\n\
             <title id=\"title\">{}</title>\n<desc id=\"about\">{}</desc>\n\
             <style>\n{LIGHT}{light}@media (prefers-color-scheme:dark){{\n{DARK}{dark}}}\n</style>\n\
             <rect class=\"paper\" width=\"100%\" height=\"100%\"/>\n{elements}</svg>\n",
            Escaped(title),
            Escaped(about)
        )
    }
}

/// Escapes text for XML.
pub struct Escaped<'a>(pub &'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|c| match c {
            '<' => f.write_str("&lt;"),
            '>' => f.write_str("&gt;"),
            '&' => f.write_str("&amp;"),
            '"' => f.write_str("&quot;"),
            // XML cannot represent these two, even escaped.
            '\u{fffe}' | '\u{ffff}' => f.write_str("?"),
            c if c.is_control() => f.write_str(" "),
            c => f.write_fmt(format_args!("{c}")),
        })
    }
}
