// Formats text and numbers for HTML.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fvlm::report {

// Escapes text for HTML content and double-quoted attributes. Replaces invalid UTF-8 and control characters.
std::string escaped(std::string_view text);

// A string of JSON that may stand in a <script>.
std::string script_string(std::string_view text);

// "0.8431", "1,312", "2e-5": four digits, thousands grouped; a dash where there is none.
std::string figure(double value);
std::string figure(const std::optional<double>& value);
std::string fixed(const std::optional<double>& value);                     // "0.310", of a column whose points align
std::string percent(const std::optional<double>& share, int decimals = 1); // "98.4 %", with a narrow space
std::string count_text(const std::optional<double>& value);                // whole, grouped
std::string short_count(double value);                                     // "4.1 M"

std::string cell(std::string_view text); // of a table, right-aligned
std::string text_cell(std::string_view text, std::string_view traits = "");
// A table that scrolls on a narrow screen. Columns whose name starts with '<' are left-aligned.
std::string table(const std::vector<std::string>& header, const std::string& rows, std::string_view traits = "");

// A class that sets --c to a colour: from 1 on the palette of page/style.css, then those of further_colours(). The
// first 64 are all different.
std::string colour_class(int number);
std::string further_colours(); // rules for page/style.css

} // namespace fvlm::report
