#include "report/page_layout.h"

#include "base/error.h"
#include "http/page_policy.h"
#include "report/html.h"

#include <fmt/format.h>

#include <map>

namespace fvlm::report {

extern const std::string_view page_html, style_css, script_js, live_html, live_js; // page/

namespace {

// Replaces each {{name}} in the template by its value, which is not searched for names itself.
std::string filled(std::string_view page, const std::map<std::string_view, std::string>& values) {
  std::string out;
  for (size_t at = 0;;) {
    size_t open = page.find("{{", at), close = page.find("}}", open);
    if (open == page.npos || close == page.npos) return out.append(page.substr(at));
    out += page.substr(at, open - at);
    auto value = values.find(page.substr(open + 2, close - open - 2));
    if (value == values.end())
      throw Error(ErrorKind::internal, "page.html has the placeholder {}, which has no value",
                  page.substr(open, close + 2 - open));
    out += value->second;
    at = close + 2;
  }
}

std::string sections_html(const std::vector<Section>& sections) {
  std::string out;
  for (const auto& section : sections)
    if (!section.content.empty())
      out += fmt::format("<section id=\"{}\">\n<h2>{}</h2>\n{}</section>\n", section.anchor, section.title,
                         section.content);
  return out;
}

std::string contents_html(const std::vector<Section>& sections) {
  std::string out;
  for (const auto& section : sections)
    if (!section.content.empty()) out += fmt::format("<a href=\"#{}\">{}</a>", section.anchor, section.title);
  return out;
}

std::string script_of(bool is_live) {
  return fmt::format("\n{}{}", script_js, is_live ? live_js : "");
}

} // namespace

std::string page_html_of(const Layout& layout) {
  return filled(page_html, {{"kind", layout.kind},
                            {"title", escaped(layout.title)},
                            {"style", std::string(style_css) + further_colours()},
                            {"script", script_of(layout.is_live)},
                            {"connect", layout.is_live ? "connect-src 'self'; " : ""},
                            {"about", layout.about},
                            {"contents", contents_html(layout.sections)},
                            {"live", layout.is_live ? std::string(live_html) : ""},
                            {"cards", layout.cards},
                            {"sections", sections_html(layout.sections)}});
}

std::string live_page_policy() {
  static const std::string policy =
      fmt::format("default-src 'none'; script-src {}; style-src 'unsafe-inline'; connect-src 'self'; img-src data:; "
                  "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
                  policy_source(script_of(true)));
  return policy;
}

std::string notes_html(const std::vector<std::string>& notes) {
  std::string out;
  for (const auto& note : notes) out += fmt::format("<li>{}</li>", escaped(note));
  return out.empty() ? "" : "<ul class=\"notes\">" + out + "</ul>\n";
}

} // namespace fvlm::report
