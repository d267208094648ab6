// JSON from outside, read strictly: a key given twice, deep nesting and bytes that are not UTF-8 are errors.
#pragma once
#include <nlohmann/json.hpp>

#include <filesystem>
#include <string>
#include <string_view>

namespace fvlm {

// Throws Error(data) at `where` that names line and column. `depth`: how many brackets may be open at once.
nlohmann::json parse_json(std::string_view text, const std::string& where, int depth = 64);

// The object in a file of at most `max_bytes`.
nlohmann::json read_json_object(const std::filesystem::path& path, uint64_t max_bytes);

} // namespace fvlm
