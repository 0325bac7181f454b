# Installs rullama-train @VERSION@ for this user:
#   irm https://github.com/rullama/rullama-train/releases/latest/download/install.ps1 | iex
# RULLAMA_INSTALL_DIR names another folder, RULLAMA_DOWNLOADS a mirror of the release's files.
$ErrorActionPreference = 'Stop'

& {
    $version = '@VERSION@'
    $from = if ($env:RULLAMA_DOWNLOADS) { $env:RULLAMA_DOWNLOADS } else { "https://github.com/rullama/rullama-train/releases/download/v$version" }
    $into = if ($env:RULLAMA_INSTALL_DIR) { $env:RULLAMA_INSTALL_DIR } else { Join-Path $env:LOCALAPPDATA 'rullama-train' }
    $folder = "rullama-train-v$version-x86_64-pc-windows-msvc"
    $expected = '@SHA256:x86_64-pc-windows-msvc@'
    $work = Join-Path ([IO.Path]::GetTempPath()) ([IO.Path]::GetRandomFileName())
    New-Item -ItemType Directory -Path $work | Out-Null
    try {
        $archive = Join-Path $work 'archive.zip'
        [Net.ServicePointManager]::SecurityProtocol = [Net.ServicePointManager]::SecurityProtocol -bor [Net.SecurityProtocolType]::Tls12
        Invoke-WebRequest -UseBasicParsing -Uri "$from/$folder.zip" -OutFile $archive
        $found = (Get-FileHash -Algorithm SHA256 $archive).Hash.ToLower()
        if ($found -ne $expected) { throw "$folder.zip has the SHA-256 $found, expected $expected; download it again" }
        Expand-Archive -Path $archive -DestinationPath $work
        $said = & (Join-Path $work "$folder\rullama-train.exe") --version
        if ($LASTEXITCODE -ne 0) { throw 'the program does not start here; build from source: cargo install --locked rullama-train-cli' }
        New-Item -ItemType Directory -Force -Path $into | Out-Null
        Copy-Item -Force (Join-Path $work "$folder\rullama-train.exe") $into
    } finally {
        Remove-Item -Recurse -Force $work
    }
    $path = [Environment]::GetEnvironmentVariable('Path', 'User')
    if (($path -split ';') -notcontains $into) {
        [Environment]::SetEnvironmentVariable('Path', "$path;$into".Trim(';'), 'User')
        $env:Path = "$env:Path;$into"
    }
    Write-Output "installed $said in $into; new terminals find it"
}
