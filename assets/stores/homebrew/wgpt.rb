class Wgpt < Formula
  desc "Train and fine-tune GPT-2, Llama and Qwen on your own GPU"
  homepage "@REPOSITORY@"
  url "@REPOSITORY@/releases/download/v@VERSION@/wgpt-@VERSION@-x86_64-unknown-linux-gnu.tar.xz"
  sha256 "@SHA256 wgpt-@VERSION@-x86_64-unknown-linux-gnu.tar.xz@"
  license any_of: ["MIT", "Apache-2.0"]

  on_macos do
    depends_on arch: :arm64

    on_arm do
      url "@REPOSITORY@/releases/download/v@VERSION@/wgpt-@VERSION@-aarch64-apple-darwin.tar.xz"
      sha256 "@SHA256 wgpt-@VERSION@-aarch64-apple-darwin.tar.xz@"
    end
  end

  on_linux do
    depends_on arch: :x86_64
  end

  def install
    bin.install "wgpt"
    man1.install Dir["share/man/man1/*"]
    bash_completion.install "share/bash-completion/completions/wgpt"
    fish_completion.install "share/fish/vendor_completions.d/wgpt.fish"
    zsh_completion.install "share/zsh/site-functions/_wgpt"
    doc.install "THIRD-PARTY.txt"
  end

  test do
    system bin/"wgpt", "train", "--preset=demo", "--device=cpu", "--max_iters=5"
    assert_path_exists testpath/"out/demo-1/checkpoints/00000005/model.safetensors"
  end
end
