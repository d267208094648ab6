// Questions in columns of their own, as VLMEvalKit's .tsv files and most benchmarks on the Hugging Face hub have them:
//   MMBench    question, hint, A, B, C, D, answer "B", category, image
//   MMMU       question "... <image 1> ...", options "['...', ...]", answer "B" or an open one, image_1 to image_7
//   AI2D       question, options [...], answer "2", image
//   MathVista  question, choices [...] or null, answer "a text", unit, decoded_image, metadata {task}
//   MMStar, RealWorldQA             question with the options in it, answer "B", image
//   DocVQA, InfographicVQA, TextVQA  question, answers [...], image
//   ChartQA, OCRBench, POPE          question, answer, image
// Options are listed below the question, and the answer is the letter of one. An image is a file's bytes, base64, or a
// path; VLMEvalKit also writes the index of the row that has it, and lists as Python prints them.
#include "base/base64.h"
#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "data/visual_marks.h"
#include "evaluation/forms/form.h"
#include "evaluation/forms/python_list.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>

namespace fvlm::evaluation {
namespace {

using nlohmann::json;

// As LLaVA was trained to answer, and lmms-eval asks.
constexpr const char* by_letter = "Answer with the option's letter from the given choices directly.";
constexpr const char* by_phrase = "Answer the question using a single word or phrase.";

// pandas writes "nan" where there is nothing.
bool is_there(const json* value) {
  return value && !(value->is_string() &&
                    (value->get_ref<const std::string&>() == "nan" || trimmed(value->get<std::string>()).empty()));
}

// A text, or a number as it is written.
std::string text_of(const json& value, const std::string& name) {
  if (value.is_number() || value.is_boolean()) return value.dump();
  return text_in(value, name);
}

// A list, or the text of one; nothing: it is none.
std::optional<std::vector<std::string>> list_of(const json& value, const std::string& name) {
  if (value.is_string()) return python_list(value.get_ref<const std::string&>());
  if (!value.is_array()) return std::nullopt;
  std::vector<std::string> items;
  for (const json& item : value) items.push_back(text_of(item, fmt::format("number {} of {}", items.size(), name)));
  return items;
}

std::optional<size_t> number_in(std::string_view text) {
  size_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc{} && end == text.data() + text.size() ? std::optional(number) : std::nullopt;
}

struct Options {
  std::vector<std::string> letters;
  std::vector<std::string> texts; // empty: the question lists them
  bool are_named_by_text = false; // the answer is sooner the text of one than its letter or number
};

std::string letter(size_t number) {
  return std::string(1, static_cast<char>('A' + number));
}

// The letters of options that stand in the question: "A. a cat", "(A) a cat", "A: a cat".
std::vector<std::string> letters_in(std::string_view question) {
  std::vector<std::string> letters;
  for (size_t at = 0; at + 1 < question.size(); ++at) {
    const bool begins =
        at == 0 || std::isspace(static_cast<unsigned char>(question[at - 1])) || question[at - 1] == '(';
    const bool ends = question[at + 1] == '.' || question[at + 1] == ')' || question[at + 1] == ':';
    if (begins && ends && question.substr(at, 1) == letter(letters.size())) letters.push_back(letter(letters.size()));
  }
  return letters;
}

Options options_of(const Parts& parts, const std::string& question) {
  constexpr size_t most = 26;
  Options options;
  for (size_t i = 0; i < most; ++i)
    if (const json* text = parts.find(letter(i)); is_there(text)) {
      options.letters.push_back(letter(i));
      options.texts.push_back(text_of(*text, parts.name(letter(i))));
    }
  if (options.letters.size() > 1) return options;
  options = {};
  for (const char* part : {"options", "choices"}) {
    const json* list = parts.find(part);
    if (!list) continue;
    auto texts = list_of(*list, parts.name(part));
    if (!texts) wrong_type(parts.name(part), *list, "a list");
    if (texts->size() > most)
      broken(fmt::format("{} has {} options, more than there are letters", parts.name(part), texts->size()));
    if (texts->empty()) continue;
    options.texts = std::move(*texts);
    for (size_t i = 0; i < options.texts.size(); ++i) options.letters.push_back(letter(i));
    options.are_named_by_text = std::string_view(part) == "choices";
    return options;
  }
  const json* answer = parts.find("answer");
  if (!answer || !answer->is_string()) return options;
  options.letters = letters_in(question);
  const std::string right = trimmed(answer->get<std::string>());
  if (options.letters.size() < 2 || std::ranges::find(options.letters, right) == options.letters.end()) return {};
  return options;
}

// Its letter, its text, or its number from 0: MMMU's "B", MathVista's "7.5", AI2D's "2".
size_t right_option(const Parts& parts, const Options& options) {
  const json& answer = parts.need("answer");
  const std::string given = trimmed(text_of(answer, parts.name("answer")));
  const size_t count = options.letters.size();
  const auto by_number = [&]() -> std::optional<size_t> {
    const auto number = number_in(given);
    return number && *number < count ? number : std::nullopt;
  };
  if (answer.is_number())
    if (const auto number = by_number()) return *number;
  const auto by_text = [&]() -> std::optional<size_t> {
    const auto found = std::ranges::find(options.texts, given, [](const std::string& text) { return trimmed(text); });
    return found == options.texts.end() ? std::nullopt : std::optional<size_t>(found - options.texts.begin());
  };
  const auto by_its_letter = [&]() -> std::optional<size_t> {
    std::string bare = given;
    std::erase_if(bare, [](char c) { return c == '(' || c == ')' || c == '.'; });
    const auto found = std::ranges::find(options.letters, bare);
    return found == options.letters.end() ? std::nullopt : std::optional<size_t>(found - options.letters.begin());
  };
  const auto first = options.are_named_by_text ? by_text() : by_its_letter();
  const auto second = options.are_named_by_text ? by_its_letter() : by_number();
  const auto third = options.are_named_by_text ? by_number() : by_text();
  for (const auto& found : {first, second, third})
    if (found) return *found;
  broken(fmt::format("{} is {}, none of the {} options: neither the letter, the text nor the number of one",
                     parts.name("answer"), answer.dump().substr(0, 80), count));
}

json answers_of(const Parts& parts) {
  for (const char* part : {"answers", "answer"}) {
    const json* given = parts.find(part);
    if (!is_there(given)) continue;
    if (given->is_array() && std::ranges::any_of(*given, &json::is_object)) return *given; // VQAv2's { answer }
    if (const auto list = list_of(*given, parts.name(part)); list && !list->empty()) return *list;
    if (!given->is_array()) return json::array({text_of(*given, parts.name(part))});
  }
  throw Error(ErrorKind::data, "it has no answer")
      .advise("answers of a test split may be secret: take that of validation");
}

// Its images in the order of their columns, or its video.
class Pictures {
 public:
  explicit Pictures(const Entry& entry) : entry_(entry), parts_(entry.parts()) {}

  std::vector<Picture> read() {
    if (const json* video = parts_.find("video"); video && video->is_string()) return {{video->get<std::string>()}};
    for (const char* part : {"decoded_image", "image", "images"})
      if (pictures_.empty()) take_part(part);
    if (pictures_.empty())
      for (int number = 1; take_part(fmt::format("image_{}", number));) ++number;
    if (pictures_.empty()) take_part("image_path");
    return std::move(pictures_);
  }

 private:
  bool take_part(const std::string& part) {
    const json* value = parts_.find(part);
    if (value) take(*value, parts_.name(part));
    return value != nullptr;
  }

  void take(const json& value, const std::string& name) {
    if (value.is_null()) return;
    if (value.is_array()) {
      for (const json& each : value) take(each, name);
    } else if (value.is_binary()) {
      add({value.get_binary().begin(), value.get_binary().end()}, name);
    } else if (value.is_object()) {
      const json *bytes = value_at(value, "bytes"), *path = value_at(value, "path");
      if (!bytes && !path) broken(fmt::format("{} has neither bytes nor a path", name));
      take(bytes ? *bytes : *path, name);
    } else {
      take_text(text_in(value, name), name);
    }
  }

  void take_text(const std::string& text, const std::string& name) {
    constexpr size_t longest_index = 64; // as in VLMEvalKit
    if (trimmed(text).empty() || text == "nan") return;
    if (text.starts_with("data:")) return add(decoded(std::string_view(text).substr(text.find(',') + 1), name), name);
    if (text.starts_with('['))
      if (const auto list = python_list(text)) {
        for (const std::string& each : *list) take_text(each, name);
        return;
      }
    if (is_base64_file(text)) return add(decoded(text, name), name);
    const json* index = value_at(entry_.object, "index");
    const bool may_be_index = entry_.with_index && index && text.size() <= longest_index && !is_reference_;
    if (may_be_index && text_of(*index, "'index'") != text)
      if (const auto other = entry_.with_index(text)) {
        is_reference_ = true;
        if (const json* image = Parts(*other, entry_.fields).find("image")) take(*image, name);
        is_reference_ = false;
        return;
      }
    pictures_.push_back({text});
  }

  static std::string decoded(std::string_view text, const std::string& name) {
    auto bytes = decode_base64(text);
    if (!bytes) broken(fmt::format("{} is no base64", name));
    return std::move(*bytes);
  }

  void add(std::string content, const std::string& name) {
    if (content.empty()) broken(fmt::format("{} is empty", name));
    const size_t number = pictures_.size();
    pictures_.push_back({number == 0 ? name : fmt::format("{}, image {}", name, number + 1), std::move(content)});
  }

  const Entry& entry_;
  Parts parts_;
  bool is_reference_ = false; // to another row, which refers to none
  std::vector<Picture> pictures_;
};

// Puts "<image>" in the place of each "<image 2>", and its image in that of the pictures.
void place_pictures(std::string& text, std::vector<Picture>& pictures) {
  constexpr std::string_view begin = "<image ";
  std::string out;
  std::vector<Picture> placed;
  for (size_t at = 0, found = text.find(begin);; found = text.find(begin, at)) {
    out += text.substr(at, found - at);
    if (found == std::string::npos) break;
    const size_t end = text.find('>', found);
    const auto number =
        end == std::string::npos
            ? std::nullopt
            : number_in(std::string_view(text).substr(found + begin.size(), end - found - begin.size()));
    at = number ? end + 1 : found + begin.size();
    if (!number) {
      out += begin;
      continue;
    }
    if (*number < 1 || *number > pictures.size())
      broken(fmt::format("its text has <image {}>, and it has {}", *number, counted(std::ssize(pictures), "image")));
    out += image_mark;
    placed.push_back(pictures[*number - 1]);
  }
  text = std::move(out);
  if (!placed.empty()) pictures = std::move(placed);
}

std::string category_of(const Entry& entry) {
  for (const char* key : {"category", "subfield", "subject", "metadata.task", "type", "question_type"})
    if (const json* value = value_at(entry.object, key); is_there(value) && value->is_string())
      return value->get<std::string>();
  return "";
}

// As questions of RealWorldQA say it, and those of POPE and MME.
bool says_how_to_answer(const std::string& question, bool has_options) {
  const std::string text = fvlm::lower_case(question);
  const auto has = [&](const char* how) { return text.find(how) != std::string::npos; };
  return has_options ? has("letter of the correct option") || has("option's letter") : has("yes or no");
}

// `instruction`: behind a question without options.
Question read(const Entry& entry, const std::string& instruction) {
  const Parts parts = entry.parts();
  std::string text = trimmed(parts.need_text("question"));
  if (const json* unit = parts.find("unit"); is_there(unit))
    text += fmt::format(" (Unit: {})", text_of(*unit, "'unit'"));
  const Options options = options_of(parts, text);
  if (const json* hint = parts.find("hint"); is_there(hint)) text = text_in(*hint, "'hint'") + "\n" + text;
  const bool says_how = says_how_to_answer(text, !options.letters.empty());
  for (size_t i = 0; i < options.texts.size(); ++i)
    text += fmt::format("\n{}. {}", options.letters[i], options.texts[i]);
  const std::string said = options.letters.empty() ? instruction : by_letter;
  if (!says_how && !said.empty()) text += "\n" + said;
  Question question;
  question.media = Pictures(entry).read();
  place_pictures(text, question.media);
  question.sample = {{"user", text}, {"source", category_of(entry)}};
  if (options.letters.empty()) {
    question.sample["answers"] = answers_of(parts);
  } else {
    question.sample["choices"] = options.letters;
    question.sample["answer"] = right_option(parts, options);
  }
  return question;
}

} // namespace

Question read_columns(const Entry& entry) {
  return read(entry, by_phrase);
}

// Its questions say themselves how they are to be answered.
Question read_ocrbench(const Entry& entry) {
  return read(entry, "");
}

} // namespace fvlm::evaluation
