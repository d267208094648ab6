// Patterns of file names: braces as in "clips/{0000..0999}.tar", wildcards as in "chat/*.tar".
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace fvlm {

// "a{08..10}{x,y}" -> a08x, a08y, a09x, ...: numbers have the width of the range's first one; lists may contain braces.
// Throws Error(data) for braces that are neither a range nor a list, and for more than a million names.
std::vector<std::string> expand_braces(std::string_view pattern);

// The files that match a pattern.
struct Matches {
  std::vector<std::string>
      files; // existing files, in the order of the brace expansion; matches of a wildcard are sorted
  std::vector<std::string> nothing; // names without a file, and wildcards without a match
};

// Expands braces, then * ? [a-z], which match neither a slash nor a leading dot. Throws Error(data).
Matches match_files(std::string_view pattern);

// Advice for a folder in place of the shards in it: "\"clips/*.tar\" matches the 12 shards in it". Empty where there
// are none, and for a folder with metadata.jsonl: such a folder is a shard itself.
std::string advise_folder(const std::string& folder);

} // namespace fvlm
