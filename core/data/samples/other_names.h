// The keys under which other data sets have what a user asks and what is answered.
#pragma once
#include "data/samples/parts.h"

#include <array>
#include <string>

namespace fvlm {

inline constexpr std::array question_keys = {"question", "prompt", "instruction", "query"},
                            answer_keys = {"answer", "response", "output", "completion"};

// The part that a sample without `user` has its question in, one of question_keys. "": none. Throws
// Error(data) where it has several.
std::string question_part(const Parts& parts);

// What the user says: `user`, else the text of question_part(). Alpaca's `input` goes behind its `instruction`, unless
// the source's fields name it. "" where there is none.
std::string user_text(const Parts& parts);

// By parts, the keys of a question and its answer, or else of a caption. Nothing where there are none.
Parts::Fields fields_of_other_names(const Parts& parts);

// As a recipe writes them: fields = { user = "question", assistant = "answer" }.
std::string written_fields(const Parts::Fields& fields);

} // namespace fvlm
