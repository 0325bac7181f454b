class RullamaTrain < Formula
  desc "Train LoRA adapters on quantized GGUF models, on any GPU"
  homepage "https://github.com/rullama/rullama-train"
  version "@VERSION@"
  license any_of: ["MIT", "Apache-2.0"]

  on_macos do
    on_arm do
      url "https://github.com/rullama/rullama-train/releases/download/v@VERSION@/rullama-train-v@VERSION@-aarch64-apple-darwin.tar.gz"
      sha256 "@SHA256:aarch64-apple-darwin@"
    end
    on_intel do
      url "https://github.com/rullama/rullama-train/releases/download/v@VERSION@/rullama-train-v@VERSION@-x86_64-apple-darwin.tar.gz"
      sha256 "@SHA256:x86_64-apple-darwin@"
    end
  end
  on_linux do
    on_arm do
      url "https://github.com/rullama/rullama-train/releases/download/v@VERSION@/rullama-train-v@VERSION@-aarch64-unknown-linux-gnu.tar.gz"
      sha256 "@SHA256:aarch64-unknown-linux-gnu@"
    end
    on_intel do
      url "https://github.com/rullama/rullama-train/releases/download/v@VERSION@/rullama-train-v@VERSION@-x86_64-unknown-linux-gnu.tar.gz"
      sha256 "@SHA256:x86_64-unknown-linux-gnu@"
    end
  end

  def install
    bin.install "rullama-train"
    pkgshare.install "recipes", "datasets"
    generate_completions_from_executable(bin/"rullama-train", "completions", shells: [:bash, :zsh, :fish])
  end

  test do
    assert_match version.to_s, shell_output("#{bin}/rullama-train --version")
    assert_match "tiny", shell_output("#{bin}/rullama-train models")
  end
end
