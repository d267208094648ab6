// Names of many files in one pattern: braces as in "clips/{0000..0999}.tar", wildcards as in "chat/*.tar".
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace fvlm {

// "a{08..10}{x,y}" -> a08x, a08y, a09x, ...: ranges of numbers keep the width of their first; lists may hold braces.
// Throws Error(data) for braces that are neither, and where they stand for more than a million names.
std::vector<std::string> expand_braces(std::string_view pattern);

// What a pattern stands for on this machine.
struct Matches {
  std::vector<std::string> files;   // that are there; without wildcards in the pattern's order, those of one sorted
  std::vector<std::string> nothing; // names that are not there, and wildcards that match nothing
};

// Braces first, then * ? [a-z], which match within a folder's names and no leading dot. Throws Error(data).
Matches match_files(std::string_view pattern);

// What to write in place of a folder where its shards were meant: "\"clips/*.tar\" names the 12 shards in it".
std::string advise_folder(const std::string& folder);

} // namespace fvlm
