// make_run DIR [PROGRESS]: writes a synthetic run into an empty folder, to view its report in a browser.
#include "synthetic_run.h"

#include <cstdlib>

int main(int count, char** words) {
  if (count < 2) return 2;
  std::filesystem::create_directories(words[1]);
  fvlm::test::SyntheticRun wanted;
  if (count > 2) wanted.last_progress = std::atof(words[2]);
  fvlm::test::make_run(words[1], wanted);
  return 0;
}
