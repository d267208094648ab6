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

// Text of others as it may be shown: what a terminal takes for a command becomes a space; lines and tabs stay.
std::string without_commands(std::string_view text);

} // namespace fvlm
