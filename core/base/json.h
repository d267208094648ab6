// Strict parsing of untrusted JSON: duplicate keys, deep nesting and invalid UTF-8 are errors.
#pragma once
#include <nlohmann/json.hpp>

#include <filesystem>
#include <string>
#include <string_view>

namespace fvlm {

// Throws Error(data) at `where` with line and column, also for more than 64 levels of nesting.
nlohmann::json parse_json(std::string_view text, const std::string& where);

// Reads a file of at most `max_bytes` that contains a JSON object.
nlohmann::json read_json_object(const std::filesystem::path& path, uint64_t max_bytes);

// Throws Error(data): "NAME is a number, and a text was expected".
[[noreturn]] void wrong_type(const std::string& name, const nlohmann::json& value, std::string_view expected);

} // namespace fvlm
