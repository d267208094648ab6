// Files of the cache folder that keep what was found out about plugins between runs: one small file for each question,
// with an answer by each plugin. An answer is a JSON object that also says which version of the plugin it is of.
#pragma once
#include <nlohmann/json.hpp>

#include <filesystem>
#include <string>

namespace fvlm::answer_files {

// Throws Error where there is no cache folder.
std::filesystem::path file_of(const std::string& question);

// The question's answers, by plugin; an empty object where there are none. Throws for an invalid file.
nlohmann::json load(const std::filesystem::path& file, const std::string& question);

// Merges with what other processes have written meanwhile; an invalid file is replaced. Of two writes at the same
// instant one is lost. Where the folder is full, the files that were written longest ago go. Throws for what cannot be
// written.
void store(const std::filesystem::path& file, const std::string& question, const std::string& plugin,
           const nlohmann::json& answer);

} // namespace fvlm::answer_files
