// The HTML document around the sections of a page.
#pragma once
#include <string>
#include <vector>

namespace fvlm::report {

struct Section {
  const char *anchor, *title;
  std::string content; // HTML; empty: the section is left out
};

struct Layout {
  const char* kind;         // above the title: "Training report"
  std::string title;        // plain text
  std::string about, cards; // HTML; may be empty
  std::vector<Section> sections;
  bool is_live = false; // page/live.js follows the run, over HTTP
};

std::string page_html_of(const Layout& layout);

// The Content-Security-Policy of a live page, for the header of a response.
std::string live_page_policy();

std::string notes_html(const std::vector<std::string>& notes); // plain texts as a list; empty: none

} // namespace fvlm::report
