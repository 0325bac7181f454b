{
  description = "Train LoRA adapters on quantized GGUF models, on any GPU";

  inputs.nixpkgs.url = "github:NixOS/nixpkgs/nixos-unstable";

  outputs = { self, nixpkgs }:
    let
      systems = [ "x86_64-linux" "aarch64-linux" "x86_64-darwin" "aarch64-darwin" ];
      each = build: nixpkgs.lib.genAttrs systems (system: build nixpkgs.legacyPackages.${system});
      cargo = nixpkgs.lib.importTOML ./Cargo.toml;
      manifest = cargo.package // cargo.workspace.package;
    in
    {
      packages = each (pkgs: {
        default = pkgs.rustPlatform.buildRustPackage {
          pname = manifest.name;
          version = manifest.version;
          src = self;
          cargoLock.lockFile = ./Cargo.lock;
          nativeBuildInputs = [ pkgs.makeWrapper ];
          # Tests need a device.
          doCheck = false;
          # The loader finds the system's drivers; CUDA's is found as it is.
          postInstall = pkgs.lib.optionalString pkgs.stdenv.hostPlatform.isLinux ''
            wrapProgram $out/bin/rullama-train \
              --suffix LD_LIBRARY_PATH : "${pkgs.lib.makeLibraryPath [ pkgs.vulkan-loader ]}:/run/opengl-driver/lib"
          '';
          meta = {
            description = manifest.description;
            homepage = manifest.homepage;
            license = with pkgs.lib.licenses; [ mit asl20 ];
            mainProgram = manifest.name;
          };
        };
      });
      devShells = each (pkgs: {
        default = pkgs.mkShell {
          inputsFrom = [ self.packages.${pkgs.stdenv.hostPlatform.system}.default ];
          packages = [ pkgs.just pkgs.clippy pkgs.rustfmt ];
        };
      });
    };
}
