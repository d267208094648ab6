// The terminal's abilities, styled text, and removal of control characters from untrusted text.
#pragma once
#include <string>
#include <string_view>

namespace fvlm {

// Whether to use colour: a terminal, NO_COLOR unset, TERM not "dumb".
bool color_on(int descriptor);

// The terminal's columns; 100 without a terminal.
int terminal_width(int descriptor = 1);

enum class Style { bold, dim, red, green, yellow, cyan };

// `text` in the style, if standard output uses colour; else unchanged.
std::string styled(std::string_view text, Style style);
// The same for another output: `on` is the result of color_on().
std::string styled(std::string_view text, Style style, bool on);

// Makes untrusted text safe to print: control characters (escape, U+0080 to U+009F, ...) and bidirectional marks become
// spaces, invalid UTF-8 becomes U+FFFD. Newlines and tabs are kept, and on request the colours of styled().
std::string strip_control_characters(std::string_view text, bool keep_colours = false);
// The same for a JSON document without loss: such characters, which can only occur within strings, are escaped as
// \u009b.
std::string escape_control_characters(std::string_view json);

// Passes everything that the program prints to standard output through strip_control_characters() from now on, with the
// colours of styled() kept if standard output uses colour. Call it once, before anything is printed. Does not change
// files that are written, nor JSON from escape_control_characters().
void sanitize_standard_output();

} // namespace fvlm
