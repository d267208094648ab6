// Forms of benchmark files: what one entry of each says. A form is a file beside this one and a line in form.cpp.
#pragma once
#include "data/samples/media_file.h"
#include "data/samples/parts.h"

#include <nlohmann/json.hpp>

#include <optional>
#include <string>
#include <string_view>

namespace fvlm::evaluation {

// An entry of a file, as it stands there.
struct Entry {
  nlohmann::json object;
  std::string id;   // its key, where the file is an object; else its number
  std::string file; // the file's name without its ending
};

struct Question {
  // As a shard's sample says it: "user", "choices", "answer" (text, letter or number) and "source", its category.
  nlohmann::json sample;
  std::string media; // below the media folder, with or without an ending; empty: text alone
  std::optional<TimeSpan> span;
};

struct Form {
  std::string_view name, summary;
  // Throws Error(data) without a place.
  Question (*read)(const Entry& entry);
};

// Throws Error(usage) with the names there are.
const Form& form_named(std::string_view name);
std::string forms_text(); // "mvbench, video-mme or scienceqa"

inline const Parts::Fields as_named; // every part of an entry has its own name

Question read_mvbench(const Entry& entry);
Question read_video_mme(const Entry& entry);
Question read_scienceqa(const Entry& entry);

} // namespace fvlm::evaluation
