; The installer for Windows: for one user, without administrator rights, a file association or a change of
; PATH. `setup.exe /S` installs silently, /D=FOLDER, the last argument and unquoted, chooses the folder.
; scripts/package.sh installer defines VERSION, STAGE, FILES, ICON, PICTURE and OUTFILE.

Target amd64-unicode
Unicode true
SetCompressor /SOLID lzma
RequestExecutionLevel user
ManifestDPIAware true
ManifestSupportedOS all

!include "MUI2.nsh"
!include "FileFunc.nsh"

!define UNINSTALL "Software\Microsoft\Windows\CurrentVersion\Uninstall\wgpt"
!define MENU "$SMPROGRAMS\wgpt"
; The end of a silent installation that could not be made.
!define FAILED 2

Name "wgpt ${VERSION}"
OutFile "${OUTFILE}"
Caption "wgpt ${VERSION} Setup"
BrandingText " "
InstallDir "$LOCALAPPDATA\Programs\wgpt"
InstallDirRegKey HKCU "${UNINSTALL}" "InstallLocation"

VIProductVersion "${VERSION}.0"
VIAddVersionKey "ProductName" "wgpt"
VIAddVersionKey "ProductVersion" "${VERSION}"
VIAddVersionKey "FileVersion" "${VERSION}"
VIAddVersionKey "FileDescription" "Installs wgpt"
VIAddVersionKey "LegalCopyright" "MIT or Apache-2.0"

!define MUI_ICON "${ICON}"
!define MUI_UNICON "${ICON}"
!define MUI_WELCOMEFINISHPAGE_BITMAP "${PICTURE}"
!define MUI_ABORTWARNING
!define MUI_FINISHPAGE_RUN
!define MUI_FINISHPAGE_RUN_TEXT "Open wgpt"
!define MUI_FINISHPAGE_RUN_FUNCTION OpenWindow
!define MUI_UNCONFIRMPAGE_TEXT_TOP "Your runs, models and settings stay where they are."

!insertmacro MUI_PAGE_DIRECTORY
!insertmacro MUI_PAGE_INSTFILES
!insertmacro MUI_PAGE_FINISH
!insertmacro MUI_UNPAGE_CONFIRM
!insertmacro MUI_UNPAGE_INSTFILES
!insertmacro MUI_LANGUAGE "English"

Function .onInit
  SetShellVarContext current
FunctionEnd

Function un.onInit
  SetShellVarContext current
FunctionEnd

; From the menu, so that the window has the folder of its shortcut.
Function OpenWindow
  ExecShell "open" "${MENU}\wgpt.lnk"
FunctionEnd

!macro FILE name
  File "${STAGE}/${name}"
!macroend

Section
  ; Tried first, so that nothing is half installed: a folder of somebody else, a full disk, or a wgpt that
  ; trains, whose program Windows does not replace.
  ClearErrors
  SetOutPath "$INSTDIR"
  FileOpen $0 "$INSTDIR\wgpt.exe" a
  IfErrors 0 writable
    MessageBox MB_OK|MB_ICONSTOP "wgpt cannot be written to $INSTDIR.$\n$\nIf wgpt is running, stop its runs and close its windows. Otherwise choose a folder of yours, on a disk with room." /SD IDOK
    SetErrorLevel ${FAILED}
    Abort "Nothing was installed."
  writable:
  FileClose $0

  ClearErrors
  SetOverwrite on
  !include "${FILES}"
  WriteUninstaller "$INSTDIR\uninstall.exe"
  IfErrors 0 installed
    MessageBox MB_OK|MB_ICONSTOP "Not all files of wgpt could be written to $INSTDIR.$\n$\nMake room on the disk and install again." /SD IDOK
    SetErrorLevel ${FAILED}
    Abort "wgpt is not completely installed."
  installed:

  ; The shortcuts start in a folder of the user, where runs and data are created.
  CreateDirectory "$DOCUMENTS\wgpt"
  SetOutPath "$DOCUMENTS\wgpt"
  CreateDirectory "${MENU}"
  CreateShortcut "${MENU}\wgpt.lnk" "$INSTDIR\wgpt.exe"
  CreateShortcut "${MENU}\wgpt command line.lnk" "$SYSDIR\cmd.exe" '/k "set "PATH=$INSTDIR;%PATH%" & wgpt --help"' "$INSTDIR\wgpt.exe"

  WriteRegStr HKCU "${UNINSTALL}" "DisplayName" "wgpt"
  WriteRegStr HKCU "${UNINSTALL}" "DisplayVersion" "${VERSION}"
  WriteRegStr HKCU "${UNINSTALL}" "DisplayIcon" "$INSTDIR\wgpt.exe"
  WriteRegStr HKCU "${UNINSTALL}" "Publisher" "The wgpt developers"
  WriteRegStr HKCU "${UNINSTALL}" "InstallLocation" "$INSTDIR"
  WriteRegStr HKCU "${UNINSTALL}" "UninstallString" '"$INSTDIR\uninstall.exe"'
  WriteRegStr HKCU "${UNINSTALL}" "QuietUninstallString" '"$INSTDIR\uninstall.exe" /S'
  WriteRegDWORD HKCU "${UNINSTALL}" "NoModify" 1
  WriteRegDWORD HKCU "${UNINSTALL}" "NoRepair" 1
  ${GetSize} "$INSTDIR" "/S=0K" $0 $1 $2
  IntFmt $0 "0x%08X" $0
  WriteRegDWORD HKCU "${UNINSTALL}" "EstimatedSize" $0
SectionEnd

!macroundef FILE
!macro FILE name
  Delete "$INSTDIR\${name}"
!macroend

Section Uninstall
  ; wgpt.exe first: Windows does not delete it while it runs.
  ClearErrors
  Delete "$INSTDIR\wgpt.exe"
  IfErrors 0 stopped
    MessageBox MB_OK|MB_ICONSTOP "wgpt is running. Stop its runs, close its windows, and uninstall again." /SD IDOK
    SetErrorLevel ${FAILED}
    Abort "Nothing was removed."
  stopped:
  !include "${FILES}"
  Delete "$INSTDIR\uninstall.exe"
  ; Only if nothing else is in there.
  RMDir "$INSTDIR"
  Delete "${MENU}\wgpt.lnk"
  Delete "${MENU}\wgpt command line.lnk"
  RMDir "${MENU}"
  ; Only if there are no runs and no data.
  RMDir "$DOCUMENTS\wgpt"
  DeleteRegKey HKCU "${UNINSTALL}"
SectionEnd
