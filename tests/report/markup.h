// A strict check of an HTML page: every tag is closed, nothing is fetched, no script runs but its own.
#pragma once
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fvlm::test {

inline size_t count(std::string_view text, std::string_view part) {
  size_t found = 0;
  for (size_t at = 0; (at = text.find(part, at)) != text.npos; at += part.size()) ++found;
  return found;
}

struct Markup {
  std::string problem;           // the first: "</div> closes <p> at byte 120"; empty for none
  std::vector<std::string> tags; // as they stand, "<a href=\"#x\">"
  std::string text;              // of the body, entities as they are, without scripts and styles
};

// Of a tag whose attributes are name="value", or a name alone.
inline std::vector<std::pair<std::string, std::string>> attributes(std::string_view tag) {
  std::vector<std::pair<std::string, std::string>> all;
  size_t at = tag.find_first_of(" />", 1);
  while (at < tag.size() && tag[at] == ' ') {
    size_t end = tag.find_first_of(" =/>", at + 1);
    std::string name(tag.substr(at + 1, end - at - 1));
    if (tag.substr(end, 2) != "=\"") {
      all.emplace_back(name, "");
      at = end;
      continue;
    }
    size_t close = tag.find('"', end + 2);
    all.emplace_back(name, tag.substr(end + 2, close - end - 2));
    at = close + 1;
  }
  return all;
}

inline Markup read_markup(std::string_view page) {
  static const std::set<std::string, std::less<>> alone = {"meta", "img", "input", "br", "path"};
  Markup out;
  std::vector<std::string> open;
  auto problem = [&](const std::string& what, size_t at) {
    if (out.problem.empty()) out.problem = what + " at byte " + std::to_string(at);
  };
  for (size_t at = 0; at < page.size();) {
    bool raw = !open.empty() && (open.back() == "script" || open.back() == "style");
    size_t next = raw ? page.find("</" + open.back() + ">", at) : page.find('<', at);
    if (next == page.npos) next = page.size();
    if (!raw) out.text += page.substr(at, next - at);
    if (next == page.size()) break;
    size_t end = next + 1;
    for (char quote = 0; end < page.size() && (quote || page[end] != '>'); ++end) // a '>' in quotes ends no tag
      if (quote ? page[end] == quote : page[end] == '"') quote = quote ? 0 : page[end];
    std::string tag(page.substr(next, end + 1 - next));
    at = end + 1;
    if (tag.starts_with("<!")) continue;
    out.tags.push_back(tag);
    bool closing = tag[1] == '/';
    std::string name = tag.substr(closing ? 2 : 1);
    name = name.substr(0, name.find_first_of(" />"));
    if (alone.contains(name)) continue;
    if (!closing) {
      open.push_back(name);
    } else if (open.empty() || open.back() != name) {
      problem("</" + name + "> closes <" + (open.empty() ? "nothing" : open.back()) + ">", next);
      if (!open.empty()) open.pop_back();
    } else {
      open.pop_back();
    }
  }
  if (!open.empty()) problem("<" + open.back() + "> is never closed", page.size());
  for (const auto& tag : out.tags)
    for (const auto& [name, value] : attributes(tag)) {
      if (name.starts_with("on")) problem("a handler in " + tag, 0);
      bool address = name == "src" || name == "href" || name == "srcset" || name == "action";
      if (address && !value.starts_with("data:image/") && !value.starts_with("#")) problem("fetched: " + tag, 0);
    }
  return out;
}

} // namespace fvlm::test
