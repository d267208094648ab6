#include "data/samples/supporting_sentences.h"

#include "base/json.h"
#include "base/text.h"
#include "data/samples/parts.h"
#include "data/samples/question.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

namespace fvlm {
namespace {

using Json = nlohmann::json;

constexpr size_t most_supporting = 6, few = 3, first_paragraphs = 3, first_sentences = 4, most_bytes = 2000;

struct Paragraph {
  std::string title;
  std::vector<std::string> sentences;
};

// Pairs of a title and what belongs to it, from [[title, value], ...] or {"title": [...], key: [...]}.
std::vector<std::pair<std::string, const Json*>> titled(const Json& list, const char* key, const std::string& name) {
  std::vector<std::pair<std::string, const Json*>> all;
  if (list.is_array()) {
    for (const Json& each : list) {
      if (!each.is_array() || each.size() != 2)
        broken(fmt::format("{} has an entry that is no pair [title, ...]", name));
      all.emplace_back(text_in(each[0], "a title of " + name), &each[1]);
    }
    return all;
  }
  if (!list.is_object() || !list.contains("title") || !list.contains(key) || !list["title"].is_array() ||
      !list[key].is_array() || list["title"].size() != list[key].size())
    broken(fmt::format("{} is neither a text, nor a list of [title, ...], nor an object with the equally long lists "
                       "'title' and '{}'",
                       name, key));
  for (size_t i = 0; i < list["title"].size(); ++i)
    all.emplace_back(text_in(list["title"][i], "a title of " + name), &list[key][i]);
  return all;
}

std::vector<Paragraph> paragraphs_of(const Json& context, const std::string& name) {
  std::vector<Paragraph> all;
  for (const auto& [title, sentences] : titled(context, "sentences", name)) {
    if (!sentences->is_array()) wrong_type("the sentences of " + name, *sentences, "a list");
    Paragraph paragraph{title, {}};
    for (const Json& sentence : *sentences)
      paragraph.sentences.push_back(trimmed(text_in(sentence, "a sentence of " + name)));
    all.push_back(std::move(paragraph));
  }
  return all;
}

using Place = std::pair<size_t, size_t>; // of a sentence: paragraph, number in it

// The supporting sentences with those before and after them. A fact whose sentence is missing supports nothing: some of
// HotpotQA's have a wrong number.
std::set<Place> supporting(const std::vector<Paragraph>& paragraphs, const Json& facts) {
  std::set<Place> places;
  for (const auto& [title, number] : titled(facts, "sent_id", "supporting_facts")) {
    if (!number->is_number_unsigned()) wrong_type("a number of supporting_facts", *number, "a whole number from 0");
    const auto at = number->get<size_t>();
    for (size_t i = 0; i < paragraphs.size(); ++i) {
      if (paragraphs[i].title != title || at >= paragraphs[i].sentences.size()) continue;
      for (size_t near = at - std::min<size_t>(at, 1); near <= at + 1 && near < paragraphs[i].sentences.size(); ++near)
        places.emplace(i, near);
    }
  }
  return places;
}

} // namespace

std::string supporting_sentences(const Json& context, const Json* facts, const std::string& name) {
  const std::vector<Paragraph> paragraphs = paragraphs_of(context, name);
  std::vector<Place> chosen;
  if (facts)
    for (const Place& place : supporting(paragraphs, *facts))
      if (chosen.size() < most_supporting) chosen.push_back(place);
  if (chosen.size() < few)
    for (size_t i = 0; i < std::min(first_paragraphs, paragraphs.size()); ++i)
      for (size_t number = 0; number < std::min(first_sentences, paragraphs[i].sentences.size()); ++number)
        if (std::ranges::find(chosen, Place(i, number)) == chosen.end()) chosen.emplace_back(i, number);
  std::string text;
  for (const auto& [paragraph, number] : chosen) {
    const std::string& sentence = paragraphs[paragraph].sentences[number];
    if (sentence.empty()) continue;
    if (!text.empty()) text += ' ';
    text += sentence;
  }
  return std::string(whole_characters(text, most_bytes));
}

} // namespace fvlm
