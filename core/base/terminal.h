// What the terminal can show: colour or not, how wide.
#pragma once
#include <string>
#include <string_view>

namespace fvlm {

// True for a terminal that wants colour: NO_COLOR unset, TERM not "dumb".
bool color_on(int descriptor);

// Columns of the terminal, 100 where it is none.
int terminal_width(int descriptor = 1);

enum class Style { bold, dim, red, green, yellow, cyan };

// `text` in the style where standard output shows colour, else as it is.
std::string styled(std::string_view text, Style style);
// The same for any other output: `on` as color_on() answered.
std::string styled(std::string_view text, Style style, bool on);

// Text of others as it may be shown: what a terminal takes for a command (escape and other control characters, U+0080
// to U+009F) or for an order to turn letters around (bidirectional marks) becomes a space, bytes that are not UTF-8
// U+FFFD; lines and tabs stay, and on request the colours of styled().
std::string without_commands(std::string_view text, bool keep_colours = false);
// The same for a JSON document, in which such characters can only stand within strings: \u009b. Nothing is lost.
std::string escape_commands(std::string_view json);

// The one place where text reaches the terminal: from here on all that the program prints to standard output goes
// through without_commands(); the colours of styled() stay where standard output shows colour. Once a process, before
// anything is printed. Files that are written, and JSON that escape_commands() has seen, come out as they are.
void clean_standard_output();

} // namespace fvlm
