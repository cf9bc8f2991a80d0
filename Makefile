# gated.cu: `make` builds ./train, `make test` proves it, `make help` lists the rest.
#
# One source, two compilers. g++ compiles every file for the CPU and the emulator (CUDA kernels over
# core/simt.h). Where nvcc is found, it compiles the same files once more for the GPU, and ./train holds both.

.DEFAULT_GOAL := train
.DELETE_ON_ERROR:
CORES := $(shell nproc 2>/dev/null || getconf _NPROCESSORS_ONLN)
MAKEFLAGS += --no-builtin-rules $(if $(MAKELEVEL:0=),,-j$(CORES))
comma := ,
empty :=
space := $(empty) $(empty)
BUILD := build
VERSION := 0.9

CXX ?= g++
ifeq ($(origin CXX),default)
CXX := g++
endif
COMPILER = $(filter-out ccache,$(CXX))
NVCC ?= $(shell scripts/find_cuda.sh nvcc)

# The CPU that is compiled for: x86_64, aarch64, or arm64, as Apple calls that.
CPU := $(firstword $(subst -, ,$(shell $(CXX) -dumpmachine)))
X86 := $(filter x86_64,$(CPU))
# The instruction set of the CPU code: native, or x86-64-v4 (AVX-512), x86-64-v3 (AVX2), x86-64 (neither), or armv8-a
# and later ones. Results are the same bits whichever is chosen.
ARCH ?= $(if $(filter $(CPU),$(shell uname -m)),native,$(if $(X86),x86-64-v3,armv8-a))
# (For ARM, clang++ 14 has no -march=native.)
MARCH := $(if $(X86)$(filter-out native,$(ARCH)),-march=$(ARCH),-mcpu=native)

OPENMP := -fopenmp
# macOS, untested: Apple's clang, and libraries of Homebrew, whose libomp is in a folder of its own.
APPLE := $(findstring apple,$(shell $(CXX) -dumpmachine))
ifneq ($(APPLE),)
BREW := $(shell brew --prefix)
OPENMP := -Xpreprocessor -fopenmp $(foreach d,$(BREW) $(BREW)/opt/libomp,-I$(d)/include -L$(d)/lib) -lomp
endif

# Exactness rests on these: no contraction of a*b+c, no fast-math. Every fused multiply-add is an explicit fmaf.
# (Without errno and traps sqrtf and conditions vectorise; neither changes a result.)
EXACT := -ffp-contract=off -fno-math-errno -fno-trapping-math
# (For ARM, unlike x86, g++ orders instructions before it gives out registers, and then has too few.)
CXXFLAGS ?= -O3 $(if $(X86),-mprefer-vector-width=512,$(if $(findstring clang,$(CXX))$(APPLE),,-fno-schedule-insns))
# (with these the emulator can follow how a kernel came to a barrier)
CALLS := -fno-omit-frame-pointer -fno-optimize-sibling-calls
# (A compiler makes one call of two equal ones in two branches.)
CALLS += $(if $(findstring clang,$(CXX))$(APPLE),-mllvm -enable-tail-merge=false,-fno-crossjumping -fno-tree-tail-merge)
# A switch over a choice names them all: one that lacks a new choice does not compile.
WARNINGS := -Wall -Wextra -Werror=switch -Wno-unknown-pragmas
# (clang++ names loops that it does not unroll or vectorise though asked, and fail(), whose callers write the format)
WARNINGS += -Wno-pass-failed -Wno-format-security -Wno-unknown-warning-option
# (Of DWARF 5 addr2line 2.40 takes a header for the file that includes it, where the header's code comes first.)
COMMON := -std=c++20 $(EXACT) $(OPENMP) $(WARNINGS) -g1 -gdwarf-4 -I. -MMD -MP

ifneq ($(NVCC),)
CUDA_HOME := $(patsubst %/bin/nvcc,%,$(NVCC))
# The compute capability of this machine's GPU, as 90; nothing where none answers that has the kernels' instructions (8.0 or higher).
GPU := $(shell nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | sed -nE '1s/^([89]|[1-9][0-9])\.([0-9])$$/\1\2/p')
# Machine code takes minutes. ./train has a half for GPUs where a GPU answers, where CUDA_ARCH says for which, and for gpu-check.
GPU_HALF := $(or $(CUDA_ARCH),$(GPU),$(filter gpu-build gpu-check gpu-pack,$(MAKECMDGOALS)))
# For no GPU in particular: A100 and H100. The PTX of the first is for newer ones, which compile it when they load it.
CUDA_ARCH ?= $(or $(GPU),80 90)
PTX_ARCH := compute_$(firstword $(CUDA_ARCH))
NVCCFLAGS := -std=c++20 -O3 -fmad=false -lineinfo -I. -MMD -MP -Dgated=gated_nvcc --expt-relaxed-constexpr -diag-suppress 20050,1675,128 \
  -Xcompiler $(subst $(space),$(comma),$(EXACT)),-fopenmp,$(MARCH),-Wall
MACHINE_CODE := -gencode arch=$(PTX_ARCH),code=[$(subst $(space),$(comma),$(CUDA_ARCH:%=sm_%) $(PTX_ARCH))]
PTX_ALONE := -gencode arch=$(PTX_ARCH),code=$(PTX_ARCH)
CUDA_LIBS := -L$(CUDA_HOME)/lib64 -Wl,-rpath,$(CUDA_HOME)/lib64 -lcublas -lcublasLt -lcudart -ldl -lrt
endif
LIBS := -lboost_context -lpcre2-8 -lutf8proc -lxxhash -lpthread
# (gold links a test in half of the time of ld. What it links for ARM64 has not the lines of a kernel that faults.)
LIBS += $(if $(and $(X86),$(filter g++,$(notdir $(COMPILER))),$(shell command -v ld.gold)),-fuse-ld=gold)

# Several ranks need MPI: where its compiler is found, and this build is for this machine, ./train has it. MPI= leaves it out.
MPI ?= $(if $(filter $(CPU),$(shell uname -m)),$(shell command -v mpicc 2>/dev/null))
MPI_FLAGS := $(if $(MPI),-DWITH_MPI $(patsubst -I%,-isystem %,$(shell $(MPI) --showme:compile)))
MPI_LIBS := $(if $(MPI),$(shell $(MPI) --showme:link))
# On GPUs NCCL moves their bytes, where a folder has include/nccl.h and, in lib or lib64, libnccl.so: CUDA's, the system's, or that of
# the Python packages nvidia-nccl-cu*. NCCL=DIR names it, NCCL= leaves it out. (gpu-pack is for one GPU, and NCCL has 200 MB.)
ifeq ($(origin NCCL),undefined)
NCCL := $(if $(and $(NVCC),$(MPI),$(if $(filter gpu-pack,$(MAKECMDGOALS)),,yes)),$(CUDA_HOME) /usr/local /usr $(shell python3 -c 'import nvidia.nccl as n; print(*n.__path__)' 2>/dev/null))
endif
nccl_library = $(firstword $(wildcard $(addsuffix /libnccl.so*,$(addprefix $(1)/,lib64 lib lib/$(CPU)-linux-gnu))))
NCCL_HOME := $(firstword $(foreach d,$(NCCL),$(if $(and $(wildcard $d/include/nccl.h),$(call nccl_library,$d)),$d)))
NCCL_FLAGS := $(if $(NCCL_HOME),-DWITH_NCCL $(patsubst %,-isystem %/include,$(filter-out /usr,$(NCCL_HOME))))
NCCL_LIBS := $(if $(NCCL_HOME),$(call nccl_library,$(NCCL_HOME)) -Wl$(comma)-rpath$(comma)$(dir $(call nccl_library,$(NCCL_HOME))))

# make DEPS=DIR: libraries that scripts/setup.sh --into=DIR has unpacked.
ifneq ($(DEPS),)
MULTIARCH := $(shell $(CXX) -print-multiarch)
DEPS_INCLUDE := $(addprefix -isystem ,$(wildcard $(DEPS)/usr/include $(DEPS)/usr/include/$(MULTIARCH)/openblas-pthread))
COMMON += $(DEPS_INCLUDE)
NVCCFLAGS += $(DEPS_INCLUDE)
LIBS := $(foreach d,$(abspath $(wildcard $(addprefix $(DEPS)/usr/lib/$(MULTIARCH),/ /openblas-pthread))),-L$(d) -Wl,-rpath,$(d)) $(LIBS)
endif

# ---- the sources and the tests

# Every program and test of a build links the operations and the layers of that build. What stands around them, flags, files
# and the loop, computes nothing that a build would change: it is compiled once, and every build links the same, but for the
# sanitizers' own.
KERNELS := $(wildcard kernels/*.cu $(addprefix kernels/*/,*.cu *.cpp))
LAYERS := $(wildcard layers/*.cu)
HOST := train_gpt.cu $(filter-out training/main.cu training/ranks/mpi.cpp training/ranks/nccl.cpp,$(wildcard $(addprefix training/,*.cu *.cpp */*.cpp) dataloader/*.cpp))
# $(1) the build, $(2) sources
objects = $(addsuffix .o,$(addprefix $(BUILD)/$(1)/,$(basename $(2))))
# The tuned CPU loops stand in X_cpu.cpp, and for these operations in X.cu itself: these get the flags of fast code.
# Every other .cu is run on a CPU by the emulator alone.
FAST := kernels/adamw.cu kernels/bias.cu kernels/mean.cu kernels/bf16/round.cu
FAST_TESTS := tests/test_math.cpp tests/bench.cpp

# The host's files are short and the headers that they share are long: those that read the same ones are compiled as one.
HOST_json := $(shell grep -lE 'nlohmann/json|dataloader/strict_json\.h|training/models/(hf_config|hf_keys|hf_weights)\.h' $(HOST))
HOST_command_line := $(filter training/flags/command_line.cpp training/flags/flags.cpp training/flags/check_flags.cpp,$(HOST))
HOST_dataloader := $(filter-out $(HOST_json),$(filter dataloader/%,$(HOST)))
HOST_version := training/process/version.cpp
HOST_training := $(filter-out $(HOST_json) $(HOST_command_line) $(HOST_dataloader) $(HOST_version),$(HOST))
HOST_UNITS := $(addprefix $(BUILD)/host/,json command_line training dataloader version)

# CUDA's headers are most of nvcc's time for a short file, templates of a long one: nvcc compiles what is long alone, and the short
# operations together by their first letters. What holds no kernel, the CPU's loops and cuBLAS, likewise.
NO_KERNEL := $(filter %.cpp %_cublas.cu,$(KERNELS))
ALONE := $(wildcard kernels/*/*.cu kernels/*attention*.cu kernels/gated_*.cu kernels/*matmul.cu)
ALONE := $(filter-out $(NO_KERNEL) kernels/bf16/round.cu,$(ALONE))
LETTERS := a-c d-f g h-m n-r s-z
$(foreach f,$(ALONE),$(eval UNIT_$(basename $(notdir $f)) := $f))
$(foreach l,$(LETTERS),$(eval UNIT_$l := $(filter-out $(ALONE) $(NO_KERNEL),$(wildcard $(addsuffix /[$l]*.cu,kernels kernels/bf16)))))
$(foreach l,$(LETTERS),$(eval UNIT_cpu_$l := $(filter $(NO_KERNEL),$(wildcard kernels/*/[$l]*.c*))))
KERNEL_UNITS := $(LETTERS:%=cpu_%) $(basename $(notdir $(ALONE))) $(LETTERS)
# wgmma is an instruction of compute capability 9.0, in code for that alone (90a): other GPUs have no use for these units.
HOPPER := $(foreach u,units/matmul_wgmma units/attention_wgmma tests/test_wgmma,$(addprefix $u,.o .ptx .ptxas))
$(HOPPER:%=$(BUILD)/cuda/%): MACHINE_CODE := -gencode arch=compute_90a,code=sm_90a
$(HOPPER:%=$(BUILD)/rehearsal/%): PTX_ALONE := -gencode arch=compute_90a,code=compute_90a
# The layers and the host's files launch nothing themselves: g++, which sees CUDA's headers as nvcc's host compiler does, takes a
# third of nvcc's time for them.
UNIT_program := training/main.cu training/matmul_peak.cu
UNIT_host := $(LAYERS) $(filter-out $(UNIT_program),$(HOST))
BY_NVCC := $(KERNEL_UNITS) program
UNITS := $(BY_NVCC) host
CUDA_OBJECTS := $(UNITS:%=$(BUILD)/cuda/units/%.o)

TESTS := $(filter-out test_ptx%,$(patsubst tests/%.cpp,%,$(wildcard tests/test_*.cpp)))
tests_with = $(patsubst tests/%.cpp,%,$(shell grep -lE '$(1)' $(wildcard tests/test_*.cpp)))
WHOLE_TESTS := $(call tests_with,"(layers|training|dataloader|tests/small_))
OWN_CODE_TESTS := $(call tests_with,__global__|planted_bugs.cuh|core/(simd|mma_lanes).h|__FMA__)
# What holds kernels is run again under both watchers; what depends on the CPU's vectors, on narrower ones.
# (a test may have its cases in a header)
CASES := $(subst $(space),|,on_every_device $(shell grep -l on_every_device $(filter-out tests/harness.h,$(wildcard tests/*.h))))
KERNEL_TESTS := $(call tests_with,$(CASES)) test_simt test_planted_bugs test_tma
# What reads files of others, and ranks that are threads, go under the sanitizers as well.
FOREIGN_TESTS := test_from_matrix test_hf_config test_tokenizer test_ranks
VECTOR_TESTS := test_math test_mma test_matmul test_matmul_bf16 test_grouped_matmul test_attention test_attention_bf16 test_gated_delta test_gated_delta_chunk test_gated_delta_bf16 test_golden
# What `make gradcheck` knows, and what runs kernels where there is a GPU: tests of operations first.
GRADCHECKED := $(patsubst test_%,%,$(call tests_with,\[gradcheck\]))
RUN_KERNELS := $(call tests_with,$(CASES)|kernel_device|on_both_devices)
GPU_TESTS := $(filter-out $(WHOLE_TESTS),$(RUN_KERNELS)) $(filter $(WHOLE_TESTS),$(RUN_KERNELS))
CUBLAS_TESTS := $(filter $(call tests_with,\[cublas\]),$(GPU_TESTS))

# What `make test` runs, and what `make test-all` runs beside it: the same tests under two sanitizers, the race shadow and with narrower
# vectors, tests of whole models over what nvcc has made, and the resources of kernels.
TESTED = $(TESTS:%=$(BUILD)/release/%) $(PTX_TESTS) \
  $(if $(NVCC),$(REHEARSAL)/kernels.ptx $(REHEARSAL)/train $(patsubst %,$(REHEARSAL)/%,$(filter-out $(WHOLE_TESTS),$(GPU_TESTS))))
MATRIX = $(foreach t,$(KERNEL_TESTS),$(BUILD)/asan/$(t) $(BUILD)/race/$(t)) $(FOREIGN_TESTS:%=$(BUILD)/asan/%) \
  $(if $(X86),$(foreach t,$(VECTOR_TESTS),$(BUILD)/avx2/$(t) $(BUILD)/plain/$(t))) \
  $(if $(NVCC),$(BUILD)/cuda/kernels.ptxas $(patsubst %,$(REHEARSAL)/%,$(filter $(WHOLE_TESTS),$(GPU_TESTS))))

# ---- the program

train: $(BUILD)/release/training/main.o $(BUILD)/mpi.o $(BUILD)/host.a $(BUILD)/release/layers.a $(BUILD)/release/kernels.a $(if $(GPU_HALF),$(BUILD)/nccl.o $(CUDA_OBJECTS)) $(BUILD)/gpu_half  ## the trainer: ./train --help
	$(CXX) $(OPENMP) -o $@ $(filter %.o %.a,$^) $(LIBS) $(MPI_LIBS) $(if $(GPU_HALF),$(NCCL_LIBS) $(CUDA_LIBS))

# Without the half for GPUs the trainer must not refer to it.
$(BUILD)/release/training/main.o: FLAGS_HERE := $(if $(GPU_HALF),-DWITH_CUDA,$(if $(NVCC),-DGPU_LEFT_OUT='"make gpu-build"'))
$(BUILD)/release/training/main.o: $(BUILD)/gpu_half

# (What runs under an emulator of another CPU stands in the folder of its build.)
$(BUILD)/release/train: $(BUILD)/release/training/main.o $(BUILD)/mpi.o $(BUILD)/host.a $(BUILD)/release/layers.a $(BUILD)/release/kernels.a
	$(CXX) $(OPENMP) -o $@ $^ $(LIBS) $(MPI_LIBS)

# ---- how files are compiled, as macros

# What is built depends on the flags too. They stand in files, which are written only where that changes them: what was made
# with others is then made again. $(1) where, $(2) the text
define text_file
$(1): always
	@mkdir -p $$(@D)
	@printf '%s\n' '$(2)' | cmp -s - $$@ || printf '%s\n' '$(2)' >$$@

endef

# $(1) objects and their sources, $(2) the headers that are read already, $(3) flags
define compile
$(1) $(2).gch
	@mkdir -p $$(@D)
	$(CXX) -x c++ $(COMMON) $(3) $$(FLAGS_HERE) -include $(2) -c -o $$@ $$<

endef

# Headers are most of the time of a short file: the compiler reads the common ones once for each set of flags and keeps what
# it has read. $(1) where, $(2) the headers, $(3) flags
define read_once
$(1).gch: $(2) $(1).flags
	@mkdir -p $$(@D)
	@printf '#include "%s"\n' $(2) >$(1)
	$(CXX) -x c++-header $(COMMON) $(3) -MF $$@.d -MT $$@ -o $$@ $(1)
$(call text_file,$(1).flags,$(COMPILER) $(COMMON) $(3))

endef

# A build of one source: release, asan (AddressSanitizer + UBSan + what the standard library asserts), race (the race shadow), debug (for gdb), and narrower CPUs.
# $(1) name, $(2) flags where the CPU must be fast, $(3) flags of the tests and of what the emulator alone runs, $(4) what
# tests are compiled with beside them
define build_rules
$(call compile,$(BUILD)/$(1)/%.o: %.cpp,$(BUILD)/$(1)/headers/cpu.h,$(2))
$(call compile,$(call objects,$(1),$(FAST)): $(BUILD)/$(1)/%.o: %.cu,$(BUILD)/$(1)/headers/cpu.h,$(2))
$(call compile,$(BUILD)/$(1)/%.o: %.cu,$(BUILD)/$(1)/headers/emulated.h,$(CALLS) $(3))
$(call compile,$(BUILD)/$(1)/tests/%.o: tests/%.cpp,$(BUILD)/$(1)/headers/tests.h,$(CALLS) $(3) $(4))
$(call compile,$(call objects,$(1),$(FAST_TESTS)): $(BUILD)/$(1)/%.o: %.cpp,$(BUILD)/$(1)/headers/cpu.h,$(2))
$(call read_once,$(BUILD)/$(1)/headers/cpu.h,$(OPERATION_HEADERS),$(2))
$(call read_once,$(BUILD)/$(1)/headers/emulated.h,$(OPERATION_HEADERS),$(CALLS) $(3))
$(call read_once,$(BUILD)/$(1)/headers/tests.h,tests/harness.h,$(CALLS) $(3) $(4))
$(BUILD)/$(1)/kernels.a: $(call objects,$(1),$(KERNELS) core/simt.cpp $(if $(filter race,$(1)),core/race_shadow.cpp))
	@rm -f $$@
	ar rcs $$@ $$^
$(BUILD)/$(1)/layers.a: $(call objects,$(1),$(LAYERS))
	@rm -f $$@
	ar rcs $$@ $$^
endef

# Tests that are compiled in a build. (That of an operation needs the operations alone.)
# $(1) name, $(2) flags of the linker, $(3) the tests
define tests_compiled
$(patsubst %,$(BUILD)/$(1)/%,$(filter-out $(WHOLE_TESTS),$(3))): $(BUILD)/$(1)/test_%: $(BUILD)/$(1)/tests/test_%.o $(BUILD)/catch_main.o $(BUILD)/$(1)/kernels.a
	$(CXX) $(OPENMP) $(2) -o $$@ $$^ $(LIBS) $(CATCH_LIB)
$(patsubst %,$(BUILD)/$(1)/%,$(filter $(WHOLE_TESTS),$(3))): $(BUILD)/$(1)/test_%: $(BUILD)/$(1)/tests/test_%.o $(BUILD)/catch_main.o $(BUILD)/host.a $(BUILD)/$(1)/layers.a $(BUILD)/$(1)/kernels.a
	$(CXX) $(OPENMP) $(2) -o $$@ $$^ $(LIBS) $(CATCH_LIB)

endef

# Tests that are compiled once, for release: the same objects run against a shared library of what another build has compiled,
# the operations and the layers. (Its functions call each other, not what a test's object may hold under the same name:
# -Bsymbolic-functions.) A test that holds kernels of its own, or asks what the CPU's vectors are, is compiled in every build.
# $(1) name, $(2) flags of the linker, $(3) the archive of the host's files
define tests_of_release
$(BUILD)/$(1)/libgated.so: $(BUILD)/$(1)/layers.a $(BUILD)/$(1)/kernels.a
	$(CXX) -shared $(OPENMP) $(2) -Wl,-Bsymbolic-functions -o $$@ -Wl,--whole-archive $$^ -Wl,--no-whole-archive $(LIBS)
$(patsubst %,$(BUILD)/$(1)/%,$(filter-out $(OWN_CODE_TESTS),$(TESTS))): $(BUILD)/$(1)/test_%: $(BUILD)/release/tests/test_%.o $(BUILD)/catch_main.o $(3) $(BUILD)/$(1)/libgated.so
	$(CXX) $(OPENMP) $(2) -Wl,-rpath,'$$$$ORIGIN' -o $$@ $$^ $(LIBS) $(CATCH_LIB)
$(call tests_compiled,$(1),$(2),$(OWN_CODE_TESTS))
endef

$(eval $(call text_file,$(BUILD)/gpu_half,$(if $(GPU_HALF),with,without) $(NVCC) $(LIBS)))
$(eval $(call text_file,$(BUILD)/cuda/flags,$(NVCC) $(NVCCFLAGS) $(MACHINE_CODE)))
$(eval $(call text_file,$(BUILD)/rehearsal/flags,$(NVCC) $(NVCCFLAGS) $(PTX_ALONE)))
$(eval $(call text_file,$(BUILD)/host/flags,$(COMPILER) $(COMMON)))

# ---- the host's files

$(HOST_UNITS:%=%.cpp): $(BUILD)/host/%.cpp: always
	@mkdir -p $(@D)
	@printf '#include "%s"\n' $(HOST_$*) | cmp -s - $@ || printf '#include "%s"\n' $(HOST_$*) >$@
$(HOST_UNITS:%=%.o): %.o: %.cpp $(BUILD)/host/flags
	$(CXX) $(COMMON) -Wno-subobject-linkage -Og -c -o $@ $<
$(HOST_UNITS:$(BUILD)/%=$(BUILD)/asan/%.o): $(BUILD)/asan/%.o: $(BUILD)/%.cpp $(BUILD)/asan/headers/cpu.h.flags
	@mkdir -p $(@D)
	$(CXX) $(COMMON) -Wno-subobject-linkage -Og $(SANITIZERS) -c -o $@ $<
$(BUILD)/host.a: $(HOST_UNITS:%=%.o)
$(BUILD)/asan/host.a: $(HOST_UNITS:$(BUILD)/%=$(BUILD)/asan/%.o)
$(BUILD)/host.a $(BUILD)/asan/host.a:
	@rm -f $@
	ar rcs $@ $^

# What moves bytes between ranks.
$(eval $(call text_file,$(BUILD)/mpi.flags,$(COMPILER) $(COMMON) $(MPI_FLAGS)))
$(BUILD)/mpi.o: training/ranks/mpi.cpp $(BUILD)/mpi.flags
	$(CXX) $(COMMON) $(MPI_FLAGS) -O2 -c -o $@ $<
$(eval $(call text_file,$(BUILD)/nccl.flags,$(COMPILER) $(COMMON) $(NCCL_FLAGS)))
$(BUILD)/nccl.o: training/ranks/nccl.cpp $(BUILD)/nccl.flags
	$(CXX) $(COMMON) $(NCCL_FLAGS) $(NVCC:%/bin/nvcc=-isystem %/include) -O2 -c -o $@ $<

# What ./train --version says: it is compiled into one file alone, which a commit compiles again.
COMMIT := $(or $(if $(wildcard .git),$(shell git rev-parse --short=12 HEAD 2>/dev/null)),unknown)
$(eval $(call text_file,$(BUILD)/host/version_and_commit,$(VERSION) $(COMMIT)))
$(BUILD)/host/version.o $(BUILD)/asan/host/version.o: $(BUILD)/host/version_and_commit
$(BUILD)/host/version.o $(BUILD)/asan/host/version.o: COMMON += -DGATED_VERSION='"$(VERSION)"' -DGATED_COMMIT='"$(COMMIT)"'

# The code that --export writes beside a model, as a literal of C++.
$(BUILD)/host/modeling_gated.inc: training/models/modeling_gated.py
	@mkdir -p $(@D)
	@{ printf 'R"py('; cat $<; printf ')py"\n'; } >$@
$(HOST_UNITS:%=%.cpp) $(BUILD)/cuda/units/host.cu: | $(BUILD)/host/modeling_gated.inc

# Catch2 itself holds nothing that the builds differ in: one object serves them all.
$(BUILD)/catch_main.o: tests/catch_main.cpp
	@mkdir -p $(@D)
	$(CXX) -std=c++20 -Og -I. $(DEPS_INCLUDE) -MMD -MP -c -o $@ $<
CATCH_LIB := $(if $(wildcard $(DEPS)/usr/include/catch2/catch_all.hpp),-lCatch2Main -lCatch2)

# ---- the builds

SANITIZERS := -fsanitize=address$(comma)undefined -fno-sanitize-recover=undefined -D_GLIBCXX_ASSERTIONS
SHARED := -fPIC -fno-semantic-interposition -ftls-model=initial-exec
RACE_SHADOW := -O1 $(MARCH) -DSIMT_RACE_SHADOW $(SHARED)
# (clang++ leaves out the call for a read that a write of the same place follows)
CALL_OF_ACCESS := -fsanitize=thread $(if $(findstring clang,$(COMPILER)),-mllvm -tsan-instrument-read-before-write)
OPERATION_HEADERS := core/reduce.cuh core/simd.h
# (Of tests, as of the host's files, -Og makes a fifth less work than -O1.)
$(eval $(call build_rules,release,$(CXXFLAGS) $(MARCH),-O2 $(MARCH),-Og))
$(eval $(call tests_compiled,release,,$(TESTS)))
$(eval $(call build_rules,debug,-O0 -ggdb3 $(MARCH),-O0 -ggdb3 $(MARCH)))
$(eval $(call tests_compiled,debug,,$(TESTS)))
# (With both sanitizers -O1 takes up to five times as long to compile as -Og, and the tests do not win that back.)
$(eval $(call build_rules,asan,-Og $(MARCH) $(SANITIZERS) $(SHARED),-Og $(MARCH) $(SANITIZERS) $(SHARED)))
$(eval $(call tests_of_release,asan,$(SANITIZERS),$(BUILD)/asan/host.a))
$(eval $(call build_rules,race,$(RACE_SHADOW) $(CALL_OF_ACCESS),$(RACE_SHADOW) $(CALL_OF_ACCESS)))
$(eval $(call tests_of_release,race,,$(BUILD)/host.a))
$(eval $(call build_rules,avx2,$(CXXFLAGS) -march=x86-64-v3 $(SHARED),-O1 -march=x86-64-v3 $(SHARED)))
$(eval $(call tests_of_release,avx2,,$(BUILD)/host.a))
$(eval $(call build_rules,plain,$(CXXFLAGS) -march=x86-64 $(SHARED),-O1 -march=x86-64 $(SHARED)))
$(eval $(call tests_of_release,plain,,$(BUILD)/host.a))
# The emulator and the shadow are not kernels: nothing watches them. Half of the time of a test under the shadow is the shadow's.
$(BUILD)/race/core/%.o: core/%.cpp $(BUILD)/race/headers/cpu.h.flags
	@mkdir -p $(@D)
	$(CXX) $(COMMON) $(RACE_SHADOW) -O3 -c -o $@ $<

# ---- the GPU's half: nvcc

$(UNITS:%=$(BUILD)/cuda/units/%.cu): $(BUILD)/cuda/units/%.cu: always
	@mkdir -p $(@D)
	@printf '#include "%s"\n' $(UNIT_$*) | cmp -s - $@ || printf '#include "%s"\n' $(UNIT_$*) >$@
BY_HOST_COMPILER := -Dgated=gated_nvcc -isystem $(CUDA_HOME)/include -w
$(BUILD)/cuda/headers.h: $(BUILD)/cuda/flags $(BUILD)/host/flags
	@printf '#include <%s>\n' cuda_runtime.h device_launch_parameters.h cublasLt.h nvtx3/nvToolsExt.h >$@
	@echo '#define __CUDACC__' >>$@
$(BUILD)/cuda/units/host.o: $(BUILD)/cuda/units/host.cu $(BUILD)/cuda/headers.h
	$(CXX) -x c++ $(COMMON) -Og -fPIC $(MARCH) $(BY_HOST_COMPILER) -include $(BUILD)/cuda/headers.h -c -o $@ $<
# (-v: what ptxas says of each kernel; -fPIC: for libgated.so)
$(BUILD)/cuda/units/%.o $(BUILD)/cuda/units/%.ptxas &: $(BUILD)/cuda/units/%.cu $(BUILD)/cuda/flags
	$(NVCC) $(NVCCFLAGS) $(MACHINE_CODE) -Xcompiler -fPIC -Xptxas -v -c -o $(@D)/$*.o $< 2>$(@D)/$*.ptxas || { cat $(@D)/$*.ptxas; exit 1; }
$(BUILD)/cuda/kernels.ptxas: $(KERNEL_UNITS:%=$(BUILD)/cuda/units/%.ptxas)
	@{ $(NVCC) --version; echo .target $(PTX_ARCH:compute_%=sm_%); cat $^; } >$@
$(BUILD)/cuda/tests/%.o: tests/%.cpp $(BUILD)/cuda/flags
	@mkdir -p $(@D)
	$(NVCC) -x cu $(NVCCFLAGS) $(MACHINE_CODE) -c -o $@ $<
# Tests and the benchmark share what nvcc has made of the operations: it is 70 MB.
$(BUILD)/cuda/libgated.so: $(CUDA_OBJECTS)
	$(CXX) -shared $(OPENMP) -Wl,-Bsymbolic-functions,-soname,$(@F) -o $@ $^ $(LIBS) $(CUDA_LIBS)
$(BUILD)/cuda/test_%: $(BUILD)/cuda/tests/test_%.o $(BUILD)/catch_main.o $(BUILD)/cuda/libgated.so
	$(CXX) $(OPENMP) -Wl,-rpath,'$$ORIGIN' -o $@ $^ $(LIBS) $(CATCH_LIB) $(CUDA_LIBS)

# ---- the rehearsal: what nvcc has made, run on a CPU (ptx/machine.h)

# What nvcc makes of the operations and of the program, without machine code, is linked with a stand-in for CUDA's runtime and for
# cuBLASLt; its PTX becomes C++. A test that holds no code for a GPU is compiled by g++, which sees CUDA's headers as nvcc's host
# compiler does, in a tenth of nvcc's time.
REHEARSAL := $(BUILD)/rehearsal
REHEARSED_BY_NVCC := $(filter $(call tests_with,__global__|core/(launch|reduce).cuh),$(GPU_TESTS))
# Code for the CPU is -Og here: -O3 takes the host's compiler four times as long, and its results are the same bits.
# $(1) what is made, $(2) its source
define rehearsed_by_nvcc
$(REHEARSAL)/$(1).o $(REHEARSAL)/$(1).ptx &: $(2) $(REHEARSAL)/flags
	@mkdir -p $$(@D)
	$(NVCC) -x cu $(NVCCFLAGS:-O3=-Xcompiler -Og) $$(PTX_ALONE) --keep --keep-dir $$(@D) -c -o $(REHEARSAL)/$(1).o $$< 2>$(REHEARSAL)/$(1).said || { cat $(REHEARSAL)/$(1).said; exit 1; }
endef
$(foreach unit,$(BY_NVCC),$(eval $(call rehearsed_by_nvcc,units/$(unit),$(BUILD)/cuda/units/$(unit).cu)))
# Those of the operations as one text, for ptx_lint.
$(REHEARSAL)/kernels.ptx: $(KERNEL_UNITS:%=$(REHEARSAL)/units/%.ptx)
	@cat $^ >$@
$(foreach test,$(REHEARSED_BY_NVCC),$(eval $(call rehearsed_by_nvcc,tests/$(test),tests/$(test).cpp)))
REHEARSAL_FLAGS = -Og $(MARCH) $(BY_HOST_COMPILER)
$(REHEARSAL)/host.h.gch: tests/harness.h $(BUILD)/cuda/headers.h $(BUILD)/host/flags
	@mkdir -p $(@D)
	@printf '#include "%s"\n' $(BUILD)/cuda/headers.h tests/harness.h >$(REHEARSAL)/host.h
	$(CXX) -x c++-header $(COMMON) $(REHEARSAL_FLAGS) -MF $@.d -MT $@ -o $@ $(REHEARSAL)/host.h
$(REHEARSAL)/tests/%.o: tests/%.cpp $(REHEARSAL)/host.h.gch
	@mkdir -p $(@D)
	$(CXX) -x c++ $(COMMON) $(REHEARSAL_FLAGS) -include $(REHEARSAL)/host.h -c -o $@ $<
$(REHEARSAL)/main.o: training/main.cu $(BUILD)/host/flags
	@mkdir -p $(@D)
	$(CXX) -x c++ $(COMMON) -Og -DWITH_CUDA -c -o $@ $<
# The stand-in, and the kernels in C++: an index for each PTX file that they come from.
$(BUILD)/ptx/%.o: ptx/%.cpp $(BUILD)/host/flags
	@mkdir -p $(@D)
	$(CXX) $(COMMON) -O3 $(MARCH) $(FLAGS_HERE) $(NVCC:%/bin/nvcc=-isystem %/include) -c -o $@ $<
# (That of NCCL stands on MPI, and in the program alone.)
$(BUILD)/ptx/nccl.o: FLAGS_HERE := $(NCCL_FLAGS) $(MPI_FLAGS)
$(BUILD)/ptx/nccl.o: $(BUILD)/mpi.flags $(BUILD)/nccl.flags
REHEARSAL_PTX := $(BY_NVCC:%=$(REHEARSAL)/units/%.ptx) $(REHEARSED_BY_NVCC:%=$(REHEARSAL)/tests/%.ptx)
$(REHEARSAL)/compiler: always
	@mkdir -p $(@D)
	@ptx/translate.py --compiler >$@.new; cmp -s $@.new $@ && rm $@.new || mv $@.new $@
$(REHEARSAL)/kernels/.translated: $(REHEARSAL_PTX) ptx/translate.py ptx/thread.h $(REHEARSAL)/compiler
	ptx/translate.py $(@D) $(REHEARSAL_PTX)
	cat $(BY_NVCC:%=$(@D)/%.index) >$(@D)/kernels.index
	@touch $@
REHEARSED := $(BY_NVCC:%=$(REHEARSAL)/units/%.o) $(BUILD)/cuda/units/host.o $(patsubst ptx/%.cpp,$(BUILD)/ptx/%.o,$(filter-out ptx/nccl.cpp,$(wildcard ptx/*.cpp))) $(REHEARSAL)/kernels/.translated
$(REHEARSAL)/test_%: $(REHEARSAL)/tests/test_%.o $(BUILD)/catch_main.o $(REHEARSED)
	$(CXX) $(OPENMP) -o $@ $(filter %.o,$^) $(LIBS) $(CATCH_LIB) -ldl
$(REHEARSAL)/train: $(REHEARSAL)/main.o $(BUILD)/mpi.o $(BUILD)/nccl.o $(BUILD)/ptx/nccl.o $(BUILD)/host.a $(BUILD)/release/layers.a $(BUILD)/release/kernels.a $(REHEARSED)
	$(CXX) $(OPENMP) -o $@ $(filter %.o %.a,$^) $(LIBS) $(MPI_LIBS) -ldl
# The tests of the stand-ins themselves. That of the runtime plays the machine; the others, but for NCCL's, need no nvcc.
PTX_TESTS := $(patsubst tests/%.cpp,$(BUILD)/ptx/%,$(wildcard tests/test_ptx*.cpp))
PTX_TESTS := $(filter-out $(if $(NVCC),,%/test_ptx_runtime) $(if $(NCCL_HOME),,%/test_ptx_nccl),$(PTX_TESTS))
$(PTX_TESTS): $(BUILD)/ptx/count.o
$(filter-out %/test_ptx_runtime,$(PTX_TESTS)): $(BUILD)/ptx/machine.o
$(BUILD)/ptx/test_ptx_runtime: $(addprefix $(BUILD)/ptx/,runtime.o stream.o cublas_lt.o)
$(BUILD)/ptx/test_ptx_nccl: $(addprefix $(BUILD)/ptx/,runtime.o stream.o nccl.o) $(BUILD)/mpi.o
$(BUILD)/ptx/test_ptx_nccl.o: FLAGS_HERE := $(NCCL_FLAGS)
$(PTX_TESTS): %: %.o $(BUILD)/catch_main.o
	$(CXX) $(OPENMP) -o $@ $(filter %.o,$^) $(LIBS) $(MPI_LIBS) $(CATCH_LIB) -ldl
$(PTX_TESTS:%=%.o): $(BUILD)/ptx/%.o: tests/%.cpp $(BUILD)/host/flags
	@mkdir -p $(@D)
	$(CXX) $(COMMON) -Og $(FLAGS_HERE) $(NVCC:%/bin/nvcc=-isystem %/include) -c -o $@ $<

rehearsal: export CHECK_SECONDS ?= 3600
rehearsal: export JOBS ?= $(CORES)
rehearsal: export GATED_GUARD = off
rehearsal: $(GPU_TESTS:%=$(REHEARSAL)/%) $(REHEARSAL)/train  ## gpu-check without a GPU: what nvcc has made runs on a CPU -> build/rehearsal.json, results/
	@scripts/gpu_check.py --rehearsal $(BUILD)/rehearsal.json $(REHEARSAL)/train $(GPU_TESTS:%=$(REHEARSAL)/%); code=$$?; \
	[ ! -s $(BUILD)/rehearsal.json ] || cp $(BUILD)/rehearsal.json results/; exit $$code
# What the kernels would need of an H100, read off their machine code.
MODELLED := $(patsubst %,$(BUILD)/model/%.cubin,$(filter-out cpu_%,$(KERNEL_UNITS)))
$(MODELLED): $(BUILD)/model/%.cubin: $(REHEARSAL)/units/%.ptx
	@mkdir -p $(@D)
	$(CUDA_HOME)/bin/ptxas -arch=sm_90$(findstring a,$(shell sed -n 's/^\.target sm_[0-9]*//p' $< | head -1)) -lineinfo -o $@ $<
gpu-model: $(MODELLED) $(REHEARSAL)/train  ## the time of each kernel of a step, computed from its machine code -> results/gpu_model.json
	@scripts/gpu_model.py --json=results/gpu_model.json $(BUILD)/model $(REHEARSAL)/train
	@scripts/gpu_model.py --table results/gpu_model.json >results/gpu_model.md
ptx: $(and $(KERNEL),$(NVCC),$(REHEARSAL)/kernels.ptx)  ## a kernel as nvcc makes it, below the lines of its source: make ptx KERNEL=rmsnorm_forward_kernel
	@$(if $(NVCC),ptx/show.py "$(KERNEL)" $(KERNEL_UNITS:%=$(REHEARSAL)/units/%.ptx),echo "make ptx: nvcc was not found (CUDA_HOME, the path, /usr/local/cuda*): install CUDA 12 or newer" >&2; exit 1)

# ---- tests

# ARM64 on an x86-64 machine: cross-compiled, run under qemu. Of the tests those of the operations, of the emulator, short
# golden runs, and checkpoints that go from one CPU to the other; `make test` has those of a few minutes.
ARM := $(BUILD)/arm64
ARM_LIBS := $(BUILD)/arm64-libs
ARM_COMPILER := aarch64-linux-gnu-g++
ARM_MISSING := $(if $(X86),$(foreach t,$(ARM_COMPILER) qemu-aarch64-static,$(if $(shell command -v $t 2>&1),,$t)) \
  $(if $(wildcard $(ARM_LIBS)/usr/lib/*),,$(ARM_LIBS)),an x86-64 machine)
ARM_QUICK := $(addprefix $(ARM)/release/,test_golden test_mma test_math test_simt)
# (Whole models are held by the golden runs and the checkpoints, and the race shadow, which asks no CPU, by a few kernels.)
ARM_WHOLE := $(ARM)/release/train $(ARM_QUICK) \
  $(patsubst %,$(ARM)/release/%,$(filter-out $(WHOLE_TESTS) $(notdir $(ARM_QUICK)),$(RUN_KERNELS))) \
  $(addprefix $(ARM)/race/,test_simt test_planted_bugs test_rmsnorm test_attention)
ARM_TESTED := $(if $(strip $(ARM_MISSING)),,$(ARM_QUICK))
arm_made = +$(MAKE) CXX=$(ARM_COMPILER) ARCH=armv8-a NVCC= BUILD=$(ARM) DEPS=$(ARM_LIBS) $(1)
arm-quick:
	$(call arm_made,$(ARM_QUICK))
# (arm_loops.py counts in these)
ARM_BESIDE := $(patsubst %,$(BUILD)/avx2/kernels/cpu/%_cpu.o,matmul attention gated_delta gated_delta_chunk matmul_bf16)
test-arm: train $(ARM_BESIDE)  ## on x86-64: cross-compiled for ARM64 and run under qemu, every test of an operation, golden runs, checkpoints
	@$(if $(strip $(ARM_MISSING)),echo "make test-arm: missing: $(strip $(ARM_MISSING)); run scripts/setup.sh --tests" >&2; exit 1,:)
	$(call arm_made,$(ARM_WHOLE))
	@scripts/run_tests.sh $(ARM)/loops $(ARM_WHOLE)

CLANG_TESTED := $(TESTS:%=$(BUILD)/clang/release/%) $(filter-out %_runtime %_nccl,$(PTX_TESTS:$(BUILD)/%=$(BUILD)/clang/%))
test-clang: train  ## every test, compiled by clang++ (Debian: clang, libomp-dev)
	+$(MAKE) CXX=clang++ NVCC= BUILD=$(BUILD)/clang $(CLANG_TESTED)
	@scripts/run_tests.sh $(CLANG_TESTED)

test: train $(TESTED) $(if $(ARM_TESTED),arm-quick)  ## every test: CPU = emulator = what nvcc has made, bit for bit; PTX lint
	@$(if $(NVCC),:,echo "nvcc was not found (CUDA_HOME, the path, /usr/local/cuda*): what it makes is not run on a CPU")
	@$(if $(strip $(ARM_MISSING)),echo "not run on ARM64: missing: $(strip $(ARM_MISSING)) (scripts/setup.sh --tests)",:)
	@scripts/run_tests.sh $(TESTED) $(ARM_TESTED)

test-all: export GATED_TEST_ALL := 1
test-all: train $(TESTED) $(MATRIX) $(EXERCISES)/project $(if $(NVCC),gpu-build)  ## also sanitizers, the race shadow, three vector widths, resources of kernels, what a GPU would run
	@scripts/run_tests.sh $(TESTED) $(MATRIX)

quick-test: $(foreach t,$(TESTS),$(BUILD)/release/$(t)) train  ## the release build's tests alone
	@scripts/run_tests.sh $(filter $(BUILD)/%,$^)

KNOWN_OP = $(filter $(GRADCHECKED),$(OP))
gradcheck: $(KNOWN_OP:%=$(BUILD)/release/test_%)  ## finite differences of one operation: make gradcheck OP=rmsnorm
	@$(if $(KNOWN_OP),GRADCHECK=1 $< "[gradcheck]",echo "make gradcheck OP=$(OP): expected one of: $(GRADCHECKED)" >&2; exit 1)

gpu-build: train $(GPU_TESTS:%=$(BUILD)/cuda/%) $(BUILD)/cuda/bench  ## what gpu-check runs: to see that it compiles, nvcc is enough
gpu-pack: gpu-build  ## gpu-check for a machine where nothing can be built -> build/gpu.tar.gz: make gpu-pack CUDA_ARCH=90 ARCH=x86-64-v3
	@scripts/gpu_pack.sh $(BUILD)/gpu.tar.gz train $(BUILD)/cuda/bench $(GPU_TESTS:%=$(BUILD)/cuda/%) --cublas $(CUBLAS_TESTS:%=$(BUILD)/cuda/%)
gpu-check: export BEGAN := $(shell date +%s)
gpu-check:  ## on a machine with a GPU: every check -> build/gpu_check.json, results/; goes on where it stopped (MINUTES=9, STAGES=...)
	@scripts/gpu_check.py --wishes
	@+$(MAKE) --no-print-directory gpu-build
	@[ -e $(BUILD)/gpu_check.json ] || [ ! -e results/gpu_check.json ] || cp results/gpu_check.json $(BUILD)/
	@scripts/gpu_check.py $(BUILD)/gpu_check.json $(BUILD)/cuda/bench $(GPU_TESTS:%=$(BUILD)/cuda/%) --cublas $(CUBLAS_TESTS:%=$(BUILD)/cuda/%); code=$$?; \
	[ ! -s $(BUILD)/gpu_check.json ] || cp $(BUILD)/gpu_check.json results/; exit $$code

# ---- the exercises (docs/exercises.md)

# An exercise is compiled for the race shadow and links the emulator alone, so that a first try takes seconds.
EXERCISES := $(BUILD)/exercises
EXERCISE_FLAGS := $(CALLS) $(RACE_SHADOW) $(CALL_OF_ACCESS)
$(eval $(call read_once,$(EXERCISES)/headers/try.h,tests/exercises/try.h,$(EXERCISE_FLAGS)))
$(EXERCISES)/try.o $(EXERCISES)/try_main.o $(EXERCISES)/answers_main.o: $(EXERCISES)/%.o: tests/exercises/%.cpp $(EXERCISES)/headers/try.h.flags
	@mkdir -p $(@D)
	@$(CXX) $(COMMON) $(RACE_SHADOW) -c -o $@ $<
JUDGE := $(EXERCISES)/try.o $(BUILD)/race/core/simt.o $(BUILD)/race/core/race_shadow.o
$(OP:%=$(EXERCISES)/%): $(EXERCISES)/%: exercises/%.cu $(EXERCISES)/headers/try.h.gch $(EXERCISES)/try_main.o $(JUDGE)
	@$(CXX) -x c++ $(COMMON) $(EXERCISE_FLAGS) -Wno-unused-parameter -include $(EXERCISES)/headers/try.h -c -o $@.o $<
	@$(CXX) $(OPENMP) -o $@ $@.o $(filter %.o,$^) $(LIBS)
exercises/%.cu:
	@echo "$@ is not there: make exercise OP=$* begins it" >&2; exit 1

exercise:  ## what to write oneself, judged to the bit: make exercise lists, make exercise OP=activation begins one
	@scripts/exercise.sh $(if $(OP),take $(OP),list)
try: $(if $(WATCH),,$(OP:%=$(EXERCISES)/%))  ## what is right and what is wrong with exercises/OP.cu: make try OP=activation (WATCH=1: at every save)
	@$(if $(WATCH),+scripts/exercise.sh watch $(OP),$(if $(OP),$< $(OP) exercises/$(OP).said,scripts/exercise.sh list))
solution:  ## a solution of an exercise: make solution OP=activation
	@scripts/exercise.sh $(if $(OP),solution $(OP),list)

# Answers to them, right and wrong, for tests/test_exercises.cpp.
$(EXERCISES)/answers.cpp: tests/exercises/answers.txt scripts/exercise.sh $(wildcard tests/exercises/*.cu) $(KERNELS)
	@mkdir -p $(@D)
	@scripts/exercise.sh answers >$@
$(EXERCISES)/answers.o: $(EXERCISES)/answers.cpp $(EXERCISES)/headers/try.h.gch
	$(CXX) $(COMMON) $(EXERCISE_FLAGS) -w -include $(EXERCISES)/headers/try.h -c -o $@ $<
$(EXERCISES)/answers: $(EXERCISES)/answers.o $(EXERCISES)/answers_main.o $(JUDGE)
	$(CXX) $(OPENMP) -o $@ $^ $(LIBS)
$(BUILD)/release/test_exercises: | $(EXERCISES)/answers
# The project's own kernels under the same judge, for tests/exercises/project_bytes.txt.
$(EXERCISES)/project.cpp: scripts/exercise.sh tests/exercises/project.h $(wildcard tests/exercises/*.cu) $(KERNELS)
	@mkdir -p $(@D)
	@{ echo '#include "tests/exercises/project.h"'; scripts/exercise.sh answers solution; } >$@
$(EXERCISES)/project.o: $(EXERCISES)/project.cpp
	$(CXX) $(COMMON) $(EXERCISE_FLAGS) -w -DWITH_PROJECT -c -o $@ $<
$(EXERCISES)/project: $(EXERCISES)/project.o $(EXERCISES)/answers_main.o $(EXERCISES)/try.o $(BUILD)/race/kernels.a
	$(CXX) $(OPENMP) -o $@ $^ $(LIBS)

# Coverage-guided fuzzing of what reads foreign bytes (needs clang and libclang-rt-14-dev).
FUZZ_SECONDS ?= 120
READERS := $(patsubst tests/fuzz_%.cpp,%,$(wildcard tests/fuzz_*.cpp))
fuzz: $(if $(and $(filter $(READERS),$(READER)),$(shell command -v clang++)),$(HOST_UNITS:%=%.cpp) $(BUILD)/release/layers.a $(BUILD)/release/kernels.a)  ## fuzz a reader: make fuzz READER=shards|safetensors|flags|hf_config|tokenizer|choices FUZZ_SECONDS=120
	@$(if $^,mkdir -p $(BUILD)/fuzz/$(READER),echo "make fuzz READER=$(READER): $(if $(filter $(READERS),$(READER)),clang++ was not found (Debian: apt-get install clang libclang-rt-14-dev),expected one of: $(READERS))" >&2; exit 1)
	clang++ -std=c++20 -O1 -g -I. -fsanitize=fuzzer,address,undefined -fopenmp -o $(BUILD)/fuzz_$(READER) tests/fuzz_$(READER).cpp $^ $(LIBS)
	$(BUILD)/fuzz_$(READER) -max_total_time=$(FUZZ_SECONDS) $(BUILD)/fuzz/$(READER) $(wildcard tests/corpus/$(READER))

# One operation alone, as the manual shows it: make build/release/check_a_kernel
$(BUILD)/release/check_a_kernel: $(BUILD)/release/docs/check_a_kernel.o $(BUILD)/release/kernels.a
	$(CXX) $(OPENMP) -o $@ $^ $(LIBS)

# ---- speed

$(BUILD)/release/bench: $(BUILD)/release/tests/bench.o $(BUILD)/host.a $(BUILD)/release/layers.a $(BUILD)/release/kernels.a
	$(CXX) $(OPENMP) -o $@ $^ $(LIBS) -lopenblas
$(BUILD)/cuda/bench: $(BUILD)/cuda/tests/bench.o $(BUILD)/cuda/libgated.so
	$(CXX) $(OPENMP) -Wl,-rpath,'$$ORIGIN' -o $@ $^ $(LIBS) $(CUDA_LIBS)

# (make bench NVCC= measures the CPU where a GPU is)
BENCH_BUILD := $(if $(and $(NVCC),$(wildcard /dev/nvidia[0-9]*)),cuda,release)
bench: $(BUILD)/$(BENCH_BUILD)/bench  ## speed of everything, on the GPU or where none is on the CPU, beside other libraries (scripts/setup.sh --bench first)
	$< $(BUILD)/bench_$(if $(filter cuda,$(BENCH_BUILD)),gpu,cpu).json

# ---- pictures

gallery: train  ## small models in which the papers' effects show, side by side on pages in gallery/ (scripts/setup.sh --plots first)
	@scripts/gallery.sh

# (where there is nvcc, with what it makes of the inner loops)
book: $(if $(NVCC),$(REHEARSAL)/kernels.ptx)  ## the sources as pages, chapter by chapter: build/book/index.html (scripts/setup.sh --book first)
	@scripts/book.py $(BUILD)/book $(if $(NVCC),$(KERNEL_UNITS:%=$(REHEARSAL)/units/%.ptx))

clean:  ## remove everything that was built
	rm -rf $(BUILD) train

format:  ## clang-format every source
	find * -path $(BUILD) -prune -o -name '*.cu' -print -o -name '*.cuh' -print -o -name '*.h' -print -o -name '*.cpp' -print | xargs clang-format -i

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | awk -F'\t' '{printf "  make %-14s %s\n", $$1, $$2}'

.PHONY: test test-arm test-clang arm-quick test-all quick-test gradcheck gpu-build gpu-check gpu-model gpu-pack ptx rehearsal exercise try solution fuzz bench gallery book clean format help always
# (make would delete the objects of tests, which only rules of patterns name)
.SECONDARY: $(foreach build,release asan race debug avx2 plain cuda rehearsal,$(TESTS:%=$(BUILD)/$(build)/tests/%.o))
-include $(shell find $(BUILD) -name '*.d' 2>/dev/null)
