// The sections of the page as HTML; each is empty where the run has nothing to show in it.
#pragma once
#include "report/page_input.h"

#include <string>
#include <vector>

namespace fvlm::report {

std::string headline_cards(const PageInput& input);
std::string stage_table(const PageInput& input);
std::string evaluation_tables(const PageInput& input);
std::string curves(const PageInput& input);
std::string time_bars(const PageInput& input);
std::string event_table(const PageInput& input);
// Of samples with a source that an encoder reads as bytes, beside those of the same key and stage in other sets.
std::string compared_answers(const PageInput& input);
std::string sample_cards(const PageInput& input, std::vector<std::string>& notes); // notes what could not be shown
std::string parameter_table(const PageInput& input);
std::string plan_tables(const PageInput& input);

bool is_noteworthy(const Event& event); // the curves show a flag for these
// Whether compared_answers() has it, so that it needs no card.
bool is_compared(const ShownSample& sample, const std::vector<ShownSample>& all);

} // namespace fvlm::report
