// A text table with aligned columns; numeric columns are right-aligned.
#pragma once
#include <string>
#include <vector>

namespace fvlm {

class TextTable {
 public:
  explicit TextTable(std::vector<std::string> header);
  void row(std::vector<std::string> cells); // as many as the header has
  std::string text() const;                 // with a final newline

 private:
  std::vector<std::string> header_;
  std::vector<std::vector<std::string>> rows_;
};

} // namespace fvlm
