// threads: keeps OpenMP threads that wait for work from holding a core that another program wants.
//
// They spin for very long by default, and where cores are shared a step then takes ten times as long. Some
// microseconds of spinning bridge the gaps between operations as well. libgomp reads its environment when the program is
// loaded, so the program starts itself again with it, once.
#pragma once
namespace gated {

void limit_spinning(char** argv);

}  // namespace gated
