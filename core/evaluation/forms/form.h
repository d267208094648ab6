// Forms of benchmark files: what one entry of each says. A form is a file beside this one and a line in form.cpp.
#pragma once
#include "data/samples/media_file.h"
#include "data/samples/parts.h"

#include <nlohmann/json.hpp>

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fvlm::evaluation {

// An entry of a file, as it stands there.
struct Entry {
  nlohmann::json object;
  std::string id;   // its key, where the file is an object; else its number, or where it stands: "row 3"
  std::string file; // the file's name without its ending
  Parts::Fields fields = {};
  // The entry of the file whose `index` is this; nothing: there is none.
  std::function<std::optional<nlohmann::json>(const std::string& index)> with_index = {};

  Parts parts() const { return {object, fields}; }
};

struct Question {
  // As a shard's sample says it: "user", "choices" with an "answer" (text, letter or number) or "answers", and
  // "source", its category.
  nlohmann::json sample;
  // One video, folder or image, or several images: their contents, or paths below the media folder, with or without an
  // ending. None: text alone.
  std::vector<Picture> media;
  std::optional<TimeSpan> span;
};

struct Form {
  std::string_view name, summary;
  // Throws Error(data) without a place.
  Question (*read)(const Entry& entry);
  // The measure of generated answers that is the benchmark's own, by which categories are compared.
  std::string_view headline = "accuracy";
};

// Throws Error(usage) with the names there are.
const Form& form_named(std::string_view name);
std::string forms_text(); // "mvbench, video-mme or scienceqa"

Question read_mvbench(const Entry& entry);
Question read_video_mme(const Entry& entry);
Question read_scienceqa(const Entry& entry);
Question read_columns(const Entry& entry);
Question read_ocrbench(const Entry& entry);

// The value of a key, or of "metadata.task", a key of the object under another. Null: it is missing or null.
const nlohmann::json* value_at(const nlohmann::json& object, std::string_view path);

} // namespace fvlm::evaluation
